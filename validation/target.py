"""Which server is validated, and by which expectations."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moet_w2 import api_key, command, config, overrides, served
from moet_w2.errors import ConfigError
from moet_w2.recipe import Expect, Recipe, W2Section, load

SHORTEST_SECONDS, LONGEST_SECONDS = 0.001, 86400
FLAGS_WITHOUT_RECIPE = ("model", "max_model_len", "mapped_layers", "mapped_bytes", "w2_layers", "audit")


@dataclass(frozen=True)
class Target:
    """A server and what it must be.

    Attributes:
        base_url: URL of the API, without /v1.
        named_by: what said so.
        model: the served name it must have.
        recipe: expectations; its ``expect`` and ``w2`` sections judge the audit.
        audit_path: audit file to judge, or None when the server runs without W2.
        stale: why the expectations cannot be the served ones, or None.
        api_key: key to send, or None.
    """

    base_url: str
    named_by: str
    model: str
    recipe: Recipe
    audit_path: Path | None
    stale: str | None
    api_key: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that name a server and its expectations; each overrides the recipe's value."""
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="default: the recipe that served last")
    parser.add_argument("--base-url", metavar="URL", help="default: by HOST and PORT, else where it was served")
    parser.add_argument("--model", metavar="NAME", help="served name")
    parser.add_argument("--max-model-len", type=int, metavar="N")
    parser.add_argument("--w2-layers", type=int, metavar="N", help="number of W2 layers")
    parser.add_argument("--mapped-layers", metavar="KEYS", help="such as 42,43; '' for none")
    parser.add_argument("--exclude-layers", metavar="KEYS", help="layers without correction")
    parser.add_argument("--mapped-bytes", type=int, metavar="N")
    parser.add_argument("--audit", type=Path, metavar="FILE", help="audit file of the server")
    parser.add_argument("--no-audit", action="store_true", help="the server runs without W2 (--stock)")


def seconds(text: str) -> float:
    """A time limit that a flag gives. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_SECONDS <= value <= LONGEST_SECONDS:  # nan is not within either
        raise argparse.ArgumentTypeError(f"{text!r} is not from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g} seconds")
    return value


def flags() -> list[str]:
    """The names under which a parser keeps those flags."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return list(vars(parser.parse_args([])))


def resolve(args: argparse.Namespace, root: Path, environ: Mapping[str, str]) -> Target:
    """Put flags, recipe, HOST and PORT, and the note of what was served together; flags win, the note comes last.

    Raises:
        MoetError: the recipe or PORT is malformed, or too little is given.
    """
    note = served.read(root)
    path = args.recipe or (Path(note.recipe) if note else None)
    if path is None:
        recipe = _from_flags(args)
    else:
        recipe = load(path, note.root if note and not args.recipe else None)
    if note is not None and note.recipe != str(recipe.file):
        note = None  # another recipe was served last: its address says nothing about this one's server
    stale = None
    if note is not None and note.recipe_sha256 != recipe.digest:
        stale = f"{recipe.file} has changed since it was served; start the server again"
    default_audit = recipe.root / ".native" / "run" / recipe.name / "audit.json"
    noted_audit = Path(note.audit_path) if note and note.audit_path else None
    audit_path = args.audit or (noted_audit if note else default_audit)
    base_url, named_by = _address(args, recipe, environ, note)
    return Target(
        base_url=base_url.rstrip("/"),
        named_by=named_by,
        model=args.model or (note.model if note else recipe.model.served_name),
        recipe=_overridden(recipe, args),
        audit_path=None if args.no_audit else audit_path,
        stale=stale,
        api_key=environ.get(api_key.VARIABLE),
    )


def _address(
    args: argparse.Namespace, recipe: Recipe, environ: Mapping[str, str], note: served.Served | None
) -> tuple[str, str]:
    """The API's URL, and what named it. HOST and PORT are taken as the launchers take them."""
    named = [name for name in ("HOST", "PORT") if environ.get(name)]
    if args.base_url:
        return args.base_url, "--base-url"
    if note and not named:
        return note.base_url, "what was served last"
    here = overrides.read(environ) if named else overrides.Overrides()
    return command.render(recipe, here).base_url, " and ".join(named) or "default"


def _overridden(recipe: Recipe, args: argparse.Namespace) -> Recipe:
    layers = {} if args.mapped_layers is None else {"mapped_layers": _keys("--mapped-layers", args.mapped_layers)}
    numbers = ("max_model_len", "w2_layers", "mapped_bytes")
    numbers = {name: getattr(args, name) for name in numbers if getattr(args, name) is not None}
    w2 = recipe.w2.model_copy(update=layers)
    if args.exclude_layers is not None:
        keys = _keys("--exclude-layers", args.exclude_layers)
        w2 = w2.model_copy(update={"correction": w2.correction.model_copy(update={"exclude_layers": keys})})
    return recipe.model_copy(update={"w2": w2, "expect": recipe.expect.model_copy(update=layers | numbers)})


def _from_flags(args: argparse.Namespace) -> Recipe:
    missing = [
        f"--{name.replace('_', '-')}"
        for name in FLAGS_WITHOUT_RECIPE
        if getattr(args, name) is None and not (name == "audit" and args.no_audit)
    ]
    if missing:
        raise ConfigError(f"nothing was served from here and no --recipe is given; give one, or {' '.join(missing)}")
    layers = _keys("--mapped-layers", args.mapped_layers)
    expect = Expect(
        max_model_len=args.max_model_len,
        w2_layers=args.w2_layers,
        mapped_layers=layers,
        mapped_bytes=args.mapped_bytes,
    )
    w2 = W2Section(mapped_layers=layers)
    model = {"path": ".", "served_name": args.model}
    engine = {"max-model-len": args.max_model_len}
    words = {"name": "flags", "description": "from flags", "hardware": "unknown", "duration": "unknown"}
    return Recipe(**words, model=model, w2=w2, engine=engine, expect=expect)


def _keys(flag: str, text: str) -> tuple[int, ...]:
    return config.layer_keys(flag, text.strip() or None)
