"""``moet doctor`` on the command line."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from .. import command, overrides, recipe
from ..serve import OVERRIDES_HELP
from . import launch
from .examine import examine
from .report import WIDTH

HELP = """exit status: 0 nothing stands in the way (there may be warnings), 1 a check failed, 2 bad usage or a recipe
that cannot be read

Each line is one check: ok, warn, fail, or skipped, which was not made and proves nothing.

"""


def add_parser(commands: Any) -> None:
    """Add ``doctor`` to the subparsers of ``moet``."""
    parser = commands.add_parser(
        "doctor",
        help="is this machine fit to serve a recipe?",
        description="Look at this machine, and at what a recipe needs of it, without changing anything.",
        epilog=HELP + OVERRIDES_HELP.partition("\n\nexit status")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="what is to be served (YAML)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where the recipe's relative paths start")
    parser.add_argument("--stock", action="store_true", help="for vLLM's own experts instead of W2")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine and print.

    Returns:
        0 where nothing stands in the way, 1 where a check failed.

    Raises:
        MoetError: the recipe or a variable of the launcher cannot be read (exit status 2).
    """
    loaded = rendered = None
    if args.recipe is not None:
        loaded = recipe.load(args.recipe, args.root)
        here = overrides.read(os.environ)
        rendered = command.render(loaded, here, stock=args.stock, program=str(launch.program()))
    report = examine(loaded, rendered)
    columns = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
    print(json.dumps(report.document(), indent=2) if args.json else "\n".join(report.lines(columns=columns)))
    return 1 if report.failed else 0
