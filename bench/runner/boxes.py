"""A box: a machine that results come from or that recipes are for, described in bench/boxes/NAME.yaml.

What is measured is not written there: a box names the result file and the key that hold it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, StrictBool, StrictStr, ValidationError

from moet_w2 import recipe_errors
from moet_w2.recipe_fields import Capability, Positive, Text
from moet_w2.recipe_sections import Section

from .fault import BenchError

Size = Annotated[float, Field(gt=0, lt=math.inf)]
Reference = Annotated[StrictStr, Field(pattern=r"^[\w.-]+\.json#[\w.-]+$")]
"""FILE#KEY.KEY: a number of a file in bench/results."""


class GpuSection(Section):
    """Its GPUs, all alike: name as the driver gives it, GiB of each as CUDA reports it."""

    name: Text
    count: Positive
    memory_gib: Size
    capability: Capability


class LinkSection(Section):
    """PCIe between host and GPU."""

    generation: Positive
    lanes: Positive


class HostSection(Section):
    """The rest of the machine; what is None is not known, or any will do."""

    cores: Positive | None = None
    memory_gib: Size
    numa_nodes: Positive | None = None


class LimitsSection(Section):
    """What commands there may not do."""

    command_seconds: Positive | None = None
    network: StrictBool = True


class Box(Section):
    """One machine."""

    name: Annotated[StrictStr, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    description: Text
    gpu: GpuSection | None = None
    link: LinkSection | None = None
    host: HostSection
    limits: LimitsSection = LimitsSection()
    recipes: tuple[StrictStr, ...] = ()
    measured: dict[str, Reference] = Field(default_factory=dict)

    def differs(self, hardware: Mapping[str, Any]) -> str | None:
        """Why a machine is not this box, or None.

        Args:
            hardware: what a result's provenance says of its machine.
        """
        name = None if self.gpu is None else self.gpu.name
        if hardware.get("gpu") != name:
            return f"its GPU is {hardware.get('gpu') or 'none'}, not {name or 'none'}"
        if self.host.cores is not None and hardware.get("cores") != self.host.cores:
            return f"it has {hardware.get('cores')} cores, not {self.host.cores}"
        return None


def load(path: Path) -> Box:
    """Read one box.

    Raises:
        BenchError: it is no YAML, or has a key or a value that is not allowed.
    """
    try:
        box = Box.model_validate(yaml.load(path.read_bytes(), recipe_errors.UniqueKeyLoader))
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; name a file of bench/boxes") from None
    except yaml.YAMLError as error:
        raise BenchError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise BenchError(f"{path}: {key}: {first['msg']}; bench/runner/boxes.py says what a box may hold") from None
    if box.name != path.stem:
        raise BenchError(f"{path}: name = {box.name!r}; name a box as its file, {path.stem!r}")
    return box


def all_of(folder: Path) -> dict[str, Box]:
    """Every box of a folder by name."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def of(hardware: Mapping[str, Any], known: Mapping[str, Box]) -> Box | None:
    """The first box that such a machine is, or None."""
    return next((box for box in known.values() if box.differs(hardware) is None), None)


def resolve(reference: str, results: Path) -> float:
    """The number that a reference means.

    Raises:
        BenchError: there is no such file, key or number.
    """
    file, _, keys = reference.partition("#")
    try:
        found: Any = json.loads((results / file).read_text())
        for key in keys.split("."):
            found = found[key]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BenchError(f"{reference}: no such number below {results.name}; name a file and a key that hold one")
    return float(found)
