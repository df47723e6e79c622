"""The ``moet`` command. Exit codes: 0 all well, 1 a check failed, 2 bad usage or bad input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from . import audit_ranks, checkpoint, exit_status, recipe, serve, sim
from .cache import commands as cache_commands
from .doctor import commands as doctor_commands
from .planner import commands as planner_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; a :class:`MoetError` becomes one line on stderr."""
    args = _parser().parse_args(argv)
    return exit_status.of("moet", lambda: args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="moet", description="2-bit routed experts for DeepSeek-V4-Flash in vLLM")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="start vLLM as a recipe says")
    serve.add_arguments(serving)
    serving.set_defaults(run=serve.run)

    doctor_commands.add_parser(commands)

    checking = commands.add_parser("checkpoint", help="look at a checkpoint folder before it is loaded")
    verbs = checking.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("check", help="is it whole, and is it DeepSeek-V4 with MXFP4 experts?")
    verb.add_argument("path", help="folder that holds config.json")
    verb.add_argument("--json", action="store_true", help="print the report as JSON")
    verb.set_defaults(run=_check_checkpoint)

    auditing = commands.add_parser("audit", help="read a placement audit")
    verbs = auditing.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("show", help="print it for a person")
    verb.add_argument("path", help="audit file")
    verb.set_defaults(run=_show_audit)
    verb = verbs.add_parser("check", help="hold it against the recipe that served")
    verb.add_argument("path", help="audit file")
    verb.add_argument("--recipe", required=True, help="recipe file")
    verb.set_defaults(run=_check_audit)
    cache_commands.add_parser(commands)
    planner_commands.add_parser(commands)
    sim.add_parser(commands)
    return parser


def _check_checkpoint(args: argparse.Namespace) -> int:
    report = checkpoint.inspect(args.path)
    checkpoint.check_tokenizer(report.path)
    geometry = report.geometry
    if args.json:
        facts = {
            "path": str(report.path),
            "target_layers": report.target_layers,
            "draft_layers": report.draft_layers,
            "experts": geometry.experts,
            "hidden": geometry.hidden,
            "width": geometry.width,
            "w2_layer_bytes": geometry.nbytes,
            "tensors": report.tensors,
            "bytes": report.nbytes,
        }
        print(json.dumps(facts, indent=2))
    else:
        print(
            f"{report.path}: DeepSeek-V4 with MXFP4 experts, {report.target_layers} target and "
            f"{report.draft_layers} draft layers of {geometry.experts} experts, {report.tensors:,} tensors, "
            f"{report.nbytes:,} bytes; one W2 layer takes {geometry.nbytes:,} bytes"
        )
    return 0


def _show_audit(args: argparse.Namespace) -> int:
    print(audit_ranks.summary(audit_ranks.load(args.path)))
    return 0


def _check_audit(args: argparse.Namespace) -> int:
    problems = audit_ranks.check(audit_ranks.load(args.path), recipe.load(args.recipe))
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print("the audit agrees with the recipe")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
