"""The command line that every suite has.

Exit status: 0 every gate passed, 1 a gate failed, 2 it could not be run or judged (one line says why; a run that was
begun is gone on with by --resume), 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from moet_w2 import exit_status
from validation import target
from validation.local import ROOT

from . import derived, live, manifest, verdict
from .errors import RunError
from .plan import Suite
from .prepare import prepare
from .replay import replay
from .talk import Dry, NotAsked


def main(suite: Suite, argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a suite's command.

    Args:
        argv: arguments; default: those of the process.
        root: checkout whose note of what was served last is read.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(suite)
    args = parser.parse_args(words)

    def run() -> int:
        _refuse_idle(parser, words, args)
        if args.replay:
            return _replay(suite, args.replay)
        if args.list or args.dry_run:
            return _show(suite, args)
        return live.run(suite, args, _command(suite, words), root)

    try:
        return exit_status.of(suite.name, run)
    except KeyboardInterrupt:
        print(f"{suite.name}: interrupted; go on with --resume and the run's folder", file=sys.stderr)
        return 130


def parser_of(prog: str, about: str) -> argparse.ArgumentParser:
    """The flags that every suite has, for the command ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=about, epilog=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print what would be asked, one line an invocation")
    what.add_argument("--dry-run", action="store_true", help="print the first request of each invocation as JSON")
    what.add_argument("--replay", type=Path, metavar="FILE", help="judge a run's folder or a derived recording (.yaml)")
    what.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a run that was interrupted")
    parser.add_argument("--cases", default="full", metavar="SET", help="full, demo or a .yaml file; default: full")
    parser.add_argument("--only", default="", metavar="TEXT", help="only invocations with TEXT in their id")
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help=f"a new dated folder is made there; default: {live.OUTPUT}"
    )
    parser.add_argument(
        "--timeout", type=target.seconds, default=1800, metavar="SECONDS", help="without a byte; default: 1800"
    )
    target.add_arguments(parser)
    return parser


def _parser(suite: Suite) -> argparse.ArgumentParser:
    parser = parser_of(f"run_{suite.name}.py", suite.about)
    suite.add_arguments(parser)
    return parser


def _refuse_idle(parser: argparse.ArgumentParser, words: list[str], args: argparse.Namespace) -> None:
    """Raises RunError for flags that would change nothing about a run that was recorded or begun."""
    if args.replay:
        told, taken = "--replay judges what was recorded, by the cases that it names", {"replay"}
    elif args.resume:
        told, taken = "--resume asks what the run was begun with", {"resume", "timeout", *target.flags()}
    else:
        return
    absent = object()
    # An attribute that is there already gets no default: what is still absent was not given.
    given = parser.parse_args(words, argparse.Namespace(**dict.fromkeys(vars(args), absent)))
    idle = [name for name, value in vars(given).items() if value is not absent and name not in taken]
    if idle:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise RunError(f"{told}; {flags} would have no effect: leave it out, or begin a new run")


def _show(suite: Suite, args: argparse.Namespace) -> int:
    cases, told, planned = prepare(suite, args.cases, suite.options(args), args.only, args.max_model_len)
    if args.list:
        for invocation in planned.invocations:
            seed = "" if invocation.seed is None else f"  seed {invocation.seed}"
            print(f"{invocation.kind:<11} {invocation.id}{seed}")
        for name, reason in planned.left_out.items():
            print(f"left out    {name}: {reason}")
        return 0
    for invocation in planned.invocations:
        talk = Dry(args.model or "MODEL", verdict.salt("dry run", invocation.id))
        try:
            suite.perform(invocation, cases, talk)
        except NotAsked:
            pass
        print(json.dumps({"invocation": invocation.id, "first": talk.first}, ensure_ascii=False))
    print(json.dumps({"cases": told, "invocations": len(planned.invocations)}))
    return 0


def _replay(suite: Suite, path: Path) -> int:
    if path.suffix in (".yaml", ".yml"):
        edit = derived.load(path)
        judged = replay(suite, path.parent / edit.source, edit.edits)
        print(f"derived from {edit.source}: {edit.about}")
    else:
        judged = replay(suite, manifest.folder_of(path))
    print("\n".join(verdict.lines(judged)))
    return 0 if judged.passed else 1


def _command(suite: Suite, words: list[str]) -> str:
    """The command for the manifest, less the places and keys of one machine."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--output-dir", "--resume", "--base-url", "--audit", "--recipe"):
        parser.add_argument(flag)
    kept = parser.parse_known_args(words)[1]
    return shlex.join(["python", f"validation/run_{suite.name}.py", *(os.path.basename(word) for word in kept)])
