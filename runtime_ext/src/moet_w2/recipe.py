"""A recipe: one YAML file that says what is served, how, and what the audit must then read.

Every key is checked when the file is read, after what it extends is merged beneath it (:mod:`recipe_source`). An
error is one line that names the file, the key, the value and what is allowed; the first one is spelled out, further
ones are counted.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, Field, PrivateAttr, StrictStr, ValidationError, model_validator

from . import recipe_errors, recipe_source
from .errors import RecipeError, UnsupportedError
from .recipe_fields import Engine, Environment, Text
from .recipe_sections import Correction, Device, Expect, GeometrySection, ModelSection, Section, W2Section


class Recipe(Section):
    """One serving profile. ``file``, ``root`` and ``digest`` say where it was read from."""

    name: Annotated[StrictStr, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    description: Text
    hardware: Text
    duration: Text
    device: Device | None = None
    model: ModelSection
    w2: W2Section
    engine: Engine
    environment: Environment = Field(default_factory=lambda: MappingProxyType({}))
    expect: Expect

    _file: Path = PrivateAttr(default=Path("(no file)"))
    _root: Path = PrivateAttr(default=Path("."))
    _digest: str = PrivateAttr(default="")

    @property
    def file(self) -> Path:
        """The file that this recipe was read from."""
        return self._file

    @property
    def root(self) -> Path:
        """The folder that relative paths of this recipe start at."""
        return self._root

    @property
    def digest(self) -> str:
        """sha256 of the file's bytes and of those of what it extends, in hex."""
        return self._digest

    @property
    def model_path(self) -> Path:
        """The checkpoint's folder, made absolute."""
        return self._root / self.model.path

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        layers, limit = self.w2.mapped_layers, self.engine.get("max-model-len")
        _equal("expect.mapped_layers", self.expect.mapped_layers, "w2.mapped_layers", layers)
        _equal("expect.max_model_len", self.expect.max_model_len, "engine.max-model-len", limit)
        if self.model.synthetic and "load-format" in self.engine:
            given = self.engine["load-format"]
            raise ValueError(f"engine.load-format = {given!r} contradicts model.synthetic = True; remove one")
        beyond = [key for key in layers + self.w2.correction.exclude_layers if key >= self.expect.w2_layers]
        if beyond:
            raise ValueError(
                f"w2: layer key {beyond[0]} is out of range; expect.w2_layers = {self.expect.w2_layers} "
                f"allows 0 to {self.expect.w2_layers - 1}"
            )
        if self.model.geometry is not None:
            try:
                layer_bytes = self.model.geometry.layer.nbytes
            except UnsupportedError as error:
                raise ValueError(f"model.geometry: {error}") from None
            total = f"{len(layers)} layers of {layer_bytes} bytes"
            _equal("expect.mapped_bytes", self.expect.mapped_bytes, total, len(layers) * layer_bytes)
        return self


def _equal(key: str, value: object, source: str, wanted: object) -> None:
    if value != wanted:
        raise ValueError(f"{key} = {_plain(value)} must equal {source} = {_plain(wanted)}")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Recipe,
    ("device",): Device,
    ("model",): ModelSection,
    ("model", "geometry"): GeometrySection,
    ("w2",): W2Section,
    ("w2", "correction"): Correction,
    ("expect",): Expect,
}


def load(path: Path | str, root: Path | str | None = None) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file.
        root: folder that relative paths start at; default: the checkout's root for ``bench/recipes/NAME.yaml``,
            the current folder for a recipe that lies elsewhere.

    Raises:
        RecipeError: a file cannot be read, is not YAML, or holds a key or value that is not allowed.
    """
    path = Path(path)
    source = recipe_source.read(path)
    try:
        recipe = Recipe.model_validate(source.data)
    except ValidationError as error:
        beneath = "".join(f" (extends {file.name})" for file in source.files[1:])
        raise RecipeError(f"{path}{beneath}: {recipe_errors.first(error, _SECTIONS)}") from None
    recipe._file = path.resolve()
    recipe._root = Path(root).resolve() if root is not None else _repository(path.resolve())
    recipe._digest = source.digest
    return recipe


def _repository(file: Path) -> Path:
    """Root of the checkout that the recipe belongs to; a recipe that lies elsewhere starts at the current folder."""
    return file.parents[2] if file.parts[-3:-1] == ("bench", "recipes") else Path.cwd()
