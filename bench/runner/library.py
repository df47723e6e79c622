"""Result files and recipes of a checkout, as the other modules read them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import facts

from moet_w2 import recipe as recipes
from moet_w2.errors import MoetError
from moet_w2.recipe import Recipe

from . import boxes
from .boxes import Box
from .fault import BenchError, Finding

RECIPES = Path("bench") / "recipes"
RESULTS = Path("bench") / "results"
HELD = RESULTS / "held"
"""Servers on a card that was held to another one's memory, and those measured beside them: the rates of no table."""
PLAIN = "-plain"
"""End of the name of a recipe that bench/serving.py derives: the target alone."""


@dataclass(frozen=True)
class Result:
    """One result file: its path below the checkout, and what it holds."""

    path: Path
    document: dict[str, Any]

    @property
    def name(self) -> str:
        """Its path below bench/results."""
        return self.path.relative_to(RESULTS).as_posix()

    @property
    def edited(self) -> str | None:
        """That its digest is not that of what it holds, or None; a file from before there was a digest has none."""
        if self.document.get(facts.DIGEST, digest := facts.digest(self.document)) == digest:
            return None
        return f"edited: {facts.DIGEST} is not that of what it holds; write it again by its command"

    @property
    def hardware(self) -> dict[str, Any]:
        return self.document["provenance"]["hardware"]


class Library:
    """What a checkout holds. Only files that git knows count where git tells; elsewhere, every file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def results(self) -> list[Result]:
        """Every JSON file of bench/results, by name.

        Raises:
            BenchError: one is not JSON.
        """
        return self._in(RESULTS)

    @cached_property
    def held(self) -> list[Result]:
        """Every JSON file of bench/results/held, by name; errors as with :attr:`results`."""
        return self._in(HELD)

    @property
    def every(self) -> list[Result]:
        """Those and the held ones."""
        return [*self.results, *self.held]

    def _in(self, folder: Path) -> list[Result]:
        return [Result(path, self.read(path)) for path in self.tracked(folder, "*.json")]

    @cached_property
    def boxes(self) -> dict[str, Box]:
        return boxes.all_of(self.root / "bench" / "boxes")

    @cached_property
    def notes(self) -> dict[str, dict[str, str]]:
        """bench/results/notes.yaml: file -> what about it is known and let pass (``dirty``, ``recipe``) -> why."""
        import yaml

        path = self.root / RESULTS / "notes.yaml"
        return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}

    def of(self, benchmark: str) -> list[Result]:
        """Results of one benchmark."""
        return [result for result in self.results if result.document.get("benchmark") == benchmark]

    def named(self, path: str) -> dict[str, Any] | None:
        """One file of the checkout, or None where git does not know it."""
        known = self.tracked(Path(path).parent)
        return self.read(Path(path)) if Path(path) in known else None

    def read(self, path: Path) -> dict[str, Any]:
        try:
            document = json.loads((self.root / path).read_text())
        except (OSError, ValueError) as error:
            raise BenchError(f"{path}: {error}; write it again by its command") from None
        if not isinstance(document, dict):
            raise BenchError(f"{path}: is no mapping; write it again by its command")
        return document

    def tracked(self, folder: Path, pattern: str = "*") -> list[Path]:
        """Files right in a folder, by name."""
        ask = ["git", "-C", str(self.root), "ls-files", "-z", "--", str(folder)]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0 and (self.root / ".git").exists():
            names = [Path(name) for name in done.stdout.split("\0") if name]
        else:
            names = [path.relative_to(self.root) for path in sorted((self.root / folder).glob("*"))]
        return sorted(
            name for name in names if name.parent == folder and name.match(pattern) and (self.root / name).is_file()
        )

    @cached_property
    def recipes(self) -> dict[str, Recipe | MoetError]:
        """Every recipe by the name of its file, or why it cannot be read."""
        found: dict[str, Recipe | MoetError] = {}
        for path in self.tracked(RECIPES, "*.yaml"):
            try:
                found[path.stem] = recipes.load(self.root / path, self.root)
            except MoetError as error:
                found[path.stem] = error
        return found

    @cached_property
    def untracked_recipes(self) -> dict[str, Finding]:
        """By the name of its file, what is to be told of each recipe that lies there and that git does not know."""
        known = self.tracked(RECIPES, "*.yaml")
        paths = (path.relative_to(self.root) for path in sorted((self.root / RECIPES).glob("*.yaml")))
        said = "it is there, but git does not know it, and only what git knows is measured; git add"
        return {path.stem: Finding(str(path), f"{said} {path}", fault=False) for path in paths if path not in known}

    def digest_now(self, configuration: str) -> str | None:
        """Digest of the recipe of a served configuration as it is in this tree, or None where there is none."""
        recipe = self.recipes.get(configuration)
        if isinstance(recipe, Recipe):
            return recipe.digest
        whole = self.recipes.get(configuration.removesuffix(PLAIN))
        if not configuration.endswith(PLAIN) or not isinstance(whole, Recipe):
            return None
        serving = _serving()
        with tempfile.TemporaryDirectory() as folder:
            made = serving.without_speculation(whole.file, Path(folder))
            return recipes.load(made, self.root).digest


def _serving() -> Any:
    """bench/serving.py, which lies beside this package."""
    beside = str(Path(__file__).parents[1])
    if beside not in sys.path:
        sys.path.insert(0, beside)
    import serving

    return serving
