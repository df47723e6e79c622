"""Checks of what bench/ holds: boxes, recipes, result files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import facts

from moet_w2.recipe import Recipe

from . import boxes, schema
from .fault import BenchError, Finding
from .library import RESULTS, Library, Result

_NOTES = ("dirty", "recipe")


def check(library: Library) -> list[Finding]:
    """Everything that is wrong, or worth knowing."""
    found = [*_recipes(library), *_boxes(library), *_notes(library)]
    for result in library.every:
        found += _result(result, library)
    return found


def _recipes(library: Library) -> Iterator[Finding]:
    for name, recipe in library.recipes.items():
        where = f"bench/recipes/{name}.yaml"
        if not isinstance(recipe, Recipe):
            yield Finding(where, str(recipe))
        elif recipe.name != name:
            yield Finding(where, f"name = {recipe.name!r}; name a recipe as its file, {name!r}")
    yield from library.untracked_recipes.values()


def _boxes(library: Library) -> Iterator[Finding]:
    try:
        known = library.boxes
    except BenchError as error:
        yield Finding("bench/boxes", str(error))
        return
    for box in known.values():
        where = f"bench/boxes/{box.name}.yaml"
        for name in box.recipes:
            recipe = library.recipes.get(name)
            if not isinstance(recipe, Recipe):
                yield Finding(where, f"recipes: there is no recipe {name!r}; name those of bench/recipes")
            elif (recipe.device is None or recipe.device.kind == "cuda") != (box.gpu is not None):
                yield Finding(where, f"recipes: {name} is made for another kind of device")
        for reference in box.measured.values():
            try:
                boxes.resolve(reference, library.root / RESULTS)
            except BenchError as error:
                yield Finding(where, f"measured: {error}")


def _notes(library: Library) -> Iterator[Finding]:
    files = {result.name: result for result in library.every}
    for name, reasons in library.notes.items():
        where = f"{RESULTS}/notes.yaml"
        if name not in files:
            yield Finding(where, f"there is no result {name}; remove its note")
            continue
        for topic in reasons:
            if topic not in _NOTES:
                yield Finding(where, f"{name}: {topic!r} is none of {', '.join(_NOTES)}")
        if "dirty" in reasons and not files[name].document.get("provenance", {}).get("dirty"):
            yield Finding(where, f"{name} was measured on a clean tree; remove its note")
        if "recipe" in reasons and not _stale(files[name], library):
            yield Finding(where, f"{name} was served from the recipe as it is; remove its note")


def unfit(result: Result) -> Iterator[str]:
    """Why no figure of a result may be shown: it is not as its schema says, or was edited."""
    for line in schema.violations(result.document):
        yield f"{line}; write it again by its command"
    if result.edited:
        yield result.edited


def _result(result: Result, library: Library) -> Iterator[Finding]:
    where, document, excused = str(result.path), result.document, library.notes.get(result.name, {})
    for line in unfit(result):
        yield Finding(where, line)
    sealed = facts.DIGEST in document
    if not sealed:
        yield Finding(where, "no digest: it is from before result files had one", fault=False)
    if document.get("provenance", {}).get("dirty"):
        why = excused.get("dirty")
        said = f"measured with uncommitted changes{f': {why}' if why else ''}"
        yield Finding(where, said, fault=sealed and not why)
    if stale := _stale(result, library):
        why = excused.get("recipe")
        yield Finding(
            where, f"{stale}{f'; let pass: {why}' if why else '; measure again, or say why in notes.yaml'}", not why
        )


def _stale(result: Result, library: Library) -> str | None:
    """How the recipe of a serving result differs from that of this tree, or None."""
    if result.document.get("benchmark") != "serving":
        return None
    name, served = str(result.document.get("configuration")), result.document.get("recipe_sha256")
    now = library.digest_now(name)
    if now is None:
        return f"there is no recipe {name!r} that can be read"
    return None if now == served else f"recipe {name} differs from the one served"


def summary(found: list[Finding], root: Path) -> str:
    """One line on the whole."""
    faults = sum(finding.fault for finding in found)
    return f"{faults} fault{'s' * (faults != 1)}, {len(found) - faults} notes in {root.name}/bench"
