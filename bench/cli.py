"""One command for what bench/ holds.

    python bench/cli.py run --recipe NAME [--box NAME] [--out FILE] [-- OPTIONS of bench/serving.py]
    python bench/cli.py load --recipe NAME [--base-url URL] [--out FILE]    vllm bench serve against a running server
    python bench/cli.py render [--check | --list]                          tables in documents, charts in bench/plots
    python bench/cli.py compare A B [--worse-than PERCENT]
    python bench/cli.py lint                                               recipes, boxes, results

Exit codes: 0 all well, 1 a check failed or a benchmark did, 2 bad usage or bad input.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__" and importlib.util.find_spec("moet_w2") is None:
    remedy = ".native/venv-cpu/bin/python bench/cli.py ... (make setup)"
    print(f"bench/cli.py needs this distribution's environment: {remedy}", file=sys.stderr)
    sys.exit(2)

import facts
from runner import boxes, compare, lint, load, render, tables
from runner.fault import BenchError
from runner.library import RESULTS, Library
from runner.output import unwritable

from moet_w2 import command, exit_status, overrides
from moet_w2.recipe import Recipe

_MARGIN_SECONDS = 50
"""What a command takes besides its budget: imports, and the stop."""


def main(argv: Sequence[str] | None = None, root: Path = facts.ROOT) -> int:
    """Run one subcommand and return its exit code; a :class:`MoetError` becomes one line on stderr."""
    args = _parser().parse_args(argv)
    return exit_status.of("bench", lambda: args.run(args, Library(root)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="recipes, boxes, results and what is made of them")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    verb = commands.add_parser("run", help="serve a recipe, measure it from start to stop, write a result file")
    verb.add_argument("--recipe", required=True, help="name of a recipe of bench/recipes")
    verb.add_argument("--box", help="the machine that this is; default: told from its hardware")
    verb.add_argument("--out", type=Path, help="result file; default: bench/results/serving_RECIPE_BOX.json")
    verb.add_argument("serving", nargs="*", help="after --: options of bench/serving.py, such as --prefill 32768")
    verb.set_defaults(run=_run)

    verb = commands.add_parser("load", help="vllm bench serve against a running server")
    verb.add_argument("--recipe", required=True, help="name of the recipe that it serves")
    verb.add_argument("--base-url", metavar="URL", help="of its API, without /v1; default: by HOST and PORT")
    verb.add_argument("--prompts", type=int, default=16, help="number of requests")
    verb.add_argument("--input-tokens", type=int, default=512, help="of each prompt, about")
    verb.add_argument("--output-tokens", type=int, default=128, help="of each answer")
    verb.add_argument("--concurrency", type=int, default=4, help="requests at once")
    verb.add_argument("--seconds", type=float, default=540.0, help="limit of the whole")
    verb.add_argument("--out", type=Path, help="write a result file")
    verb.set_defaults(run=_load)

    verb = commands.add_parser("render", help="write tables into documents and charts into bench/plots")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say what differs; exit 1 if something does")
    how.add_argument("--list", action="store_true", help="name the tables")
    verb.set_defaults(run=_render)

    verb = commands.add_parser("compare", help="two results of one benchmark side by side")
    verb.add_argument("first", type=Path, metavar="A")
    verb.add_argument("second", type=Path, metavar="B")
    verb.add_argument(
        "--worse-than", type=float, metavar="PERCENT", help="exit 1 if a rate or time of B is this much worse, or gone"
    )
    verb.set_defaults(run=_compare)

    verb = commands.add_parser("lint", help="check recipes, boxes and results")
    verb.set_defaults(run=_lint)
    return parser


def _run(args: argparse.Namespace, library: Library) -> int:
    recipe = _recipe(args.recipe, library)
    box = _box(args.box, library)
    if recipe.name not in box.recipes:
        raise BenchError(
            f"recipe {recipe.name} is not for box {box.name}, which serves {', '.join(box.recipes) or 'none'}"
        )
    out = args.out or library.root / RESULTS / f"serving_{recipe.name}_{box.name}.json"
    _check_out(out)
    # Relative paths, since the result tells the command.
    named = os.path.relpath(recipe.file, library.root.resolve())
    serving = [sys.executable, str(Path(__file__).with_name("serving.py")), "--recipe", named]
    if box.limits.command_seconds and "--budget" not in args.serving:
        serving += ["--budget", str(box.limits.command_seconds - _MARGIN_SECONDS)]
    return subprocess.call([*serving, "--out", str(out.resolve()), *args.serving], cwd=library.root)


def _load(args: argparse.Namespace, library: Library) -> int:
    if args.out:
        _check_out(args.out)
    recipe, here = _recipe(args.recipe, library), overrides.read(os.environ)
    asked = load.Load(
        base_url=(args.base_url or command.render(recipe, here).base_url).rstrip("/"),
        model=here.served_model_name or recipe.model.served_name,
        tokenizer=here.model_path or recipe.model_path,
        prompts=args.prompts,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        concurrency=args.concurrency,
        tokenizer_mode=str(recipe.engine.get("tokenizer-mode", "hf")),
    )
    found = load.run(asked, args.seconds) | {"configuration": recipe.name, "recipe_sha256": recipe.digest}
    print(found)
    if args.out:
        facts.write(args.out, found)
    return int(found["counts"]["failed"] > 0)


def _render(args: argparse.Namespace, library: Library) -> int:
    if args.list:
        print("\n".join(f"{name:<10} {(table.__doc__ or '').splitlines()[0]}" for name, table in tables.TABLES.items()))
        return 0
    if not args.check:
        print("\n".join(f"wrote {path}" for path in render.write(library)) or "nothing differs")
        return 0
    found = render.check(library)
    print("\n".join(map(str, found)) or "documents and charts are what the results give")
    return int(bool(found))


def _compare(args: argparse.Namespace, library: Library) -> int:
    if args.worse_than is not None and not 0 <= args.worse_than < math.inf:
        raise BenchError(f"--worse-than {args.worse_than:g} is no bound; give a percentage of 0 or more, such as 5")
    first, second = (compare.read(path, library) for path in (args.first, args.second))
    rows = compare.rows(first, second)
    print(compare.text(rows, list(compare.differences(first, second)), first, second))
    if args.worse_than is None:
        return 0
    worse = [f"worse by {row.worse_by:.1%}: {row.name}" for row in rows if row.worse_by * 100 > args.worse_than]
    # What is not measured any more may have become worse too.
    worse += [f"gone: {name}" for name in compare.lacking(first, second) if compare.is_judged(name)]
    print("\n".join(worse), end="\n" if worse else "")
    return int(bool(worse))


def _lint(args: argparse.Namespace, library: Library) -> int:
    found = lint.check(library)
    print("\n".join([*map(str, found), lint.summary(found, library.root)]))
    return int(any(finding.fault for finding in found))


def _check_out(path: Path) -> None:
    """Before anything starts: a measurement that nobody can keep is none."""
    if why := unwritable(path):
        raise BenchError(why)


def _recipe(name: str, library: Library) -> Recipe:
    recipe = library.recipes.get(stem := Path(name).stem)
    if recipe is None:
        if untracked := library.untracked_recipes.get(stem):
            raise BenchError(f"{untracked.where}: {untracked.what}")
        raise BenchError(f"there is no recipe {name!r}; name one of {', '.join(library.recipes)}")
    if not isinstance(recipe, Recipe):
        raise recipe
    return recipe


def _box(name: str | None, library: Library) -> boxes.Box:
    """The box that this machine is."""
    hardware = facts.provenance()["hardware"]
    if name is None:
        if (found := boxes.of(hardware, library.boxes)) is None:
            raise BenchError(
                f"no box of bench/boxes is this machine ({hardware['gpu'] or 'no GPU'}, {hardware['cores']} cores); "
                "describe it there"
            )
        return found
    if (box := library.boxes.get(name)) is None:
        raise BenchError(f"there is no box {name!r}; name one of {', '.join(library.boxes)}")
    if why := box.differs(hardware):
        raise BenchError(
            f"this machine is not box {name}: {why}; leave --box out, or describe this machine in bench/boxes"
        )
    return box


if __name__ == "__main__":
    sys.exit(main())
