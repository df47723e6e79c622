"""Runs all suites, one after the other, with the same flags: ``python validation/run_all.py --cases demo``.

Exit status: that of the worst suite: 0 every gate passed, 1 a gate failed, 2 a suite could not be run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from validation.core import installed

    installed.require("validation/run_all.py")

from moet_w2 import exit_status
from validation.core import casefile, command
from validation.local import ROOT
from validation.suites.agentic import Agentic
from validation.suites.decode import Decode
from validation.suites.needle import Needle
from validation.suites.reasoning import Reasoning
from validation.suites.tools import Tools

SUITES = (Tools(), Reasoning(), Agentic(), Decode(), Needle())
"""The longest last."""

ONE_RUN = ("replay", "resume")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """The command; ``root`` is the checkout whose note of what was served last is read."""
    given = sys.argv[1:] if words is None else words
    args = command.parser_of("run_all.py", (__doc__ or "").partition("\n")[0]).parse_args(given)
    if named := [name for name in ONE_RUN if getattr(args, name)]:
        print(f"run_all.py: error: --{named[0]} is of one run; use that suite's own command", file=sys.stderr)
        return 2
    if not any(casefile.locate(suite.name, args.cases).is_file() for suite in SUITES):
        print(f"run_all.py: error: no suite has cases {args.cases!r}; name {' or '.join(_sets())}", file=sys.stderr)
        return 2
    return exit_status.of("run_all.py", lambda: _every(given, args, root))


def _every(given: list[str], args: argparse.Namespace, root: Path) -> int:
    codes: dict[str, int] = {}
    for suite in SUITES:
        print(f"== {suite.name}", flush=True)
        start = time.monotonic()
        codes[suite.name] = command.main(suite, given, root)
        print(f"   {time.monotonic() - start:.1f} s", flush=True)
        if codes[suite.name] in (130, exit_status.UNREAD):
            break
    done = "listed" if args.list else "would be asked" if args.dry_run else "passed"
    words_of = {0: done, 1: "FAILED", 2: "not run", 130: "interrupted", exit_status.UNREAD: "cut short"}
    print("== " + ", ".join(f"{name} {words_of[code]}" for name, code in codes.items()))
    return max(codes.values())


def _sets() -> list[str]:
    """The case sets that every suite has, and what else --cases takes."""
    names = [{path.stem for path in (casefile.CASES / suite.name).glob("*.yaml")} for suite in SUITES]
    return [*sorted(set.intersection(*names)), "a .yaml file that is there"]


if __name__ == "__main__":
    sys.exit(main())
