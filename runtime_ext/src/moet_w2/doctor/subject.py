"""What the doctor examines: this machine, for one recipe or for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from ..command import Command
from ..recipe import Recipe
from .nvml import Absent, Driver, Gpu

CUDA, CPU = "cuda", "cpu"


@dataclass(frozen=True)
class Subject:
    """Everything that checks look at.

    Attributes:
        recipe: what is to be served, or None to look at the machine alone.
        command: the recipe as it would be started here, or None.
        environ: the process's environment.
        driver: what NVML says.
        root: where /proc, /sys and /dev are.
    """

    recipe: Recipe | None
    command: Command | None
    environ: Mapping[str, str]
    driver: Driver | Absent
    root: Path = Path("/")

    @cached_property
    def served_environ(self) -> dict[str, str]:
        """The environment that the server would have."""
        return {**self.environ, **(self.command.env if self.command is not None else {})}

    @cached_property
    def kind(self) -> str | None:
        """What the recipe computes on, ``cuda`` or ``cpu``; None without a recipe."""
        return None if self.recipe is None else device_kind(self.recipe)

    @property
    def tensor_parallel(self) -> int:
        """GPUs that the recipe spreads a layer over."""
        size = self.recipe.engine.get("tensor-parallel-size", 1) if self.recipe is not None else 1
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def w2(self) -> bool:
        """Whether experts would be served as W2; not with ``--stock``."""
        return self.command is not None and self.command.audit_path is not None

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the server would see, in its order, as far as CUDA_VISIBLE_DEVICES can be followed."""
        if isinstance(self.driver, Absent):
            return ()
        return visible(self.driver.gpus, self.served_environ.get("CUDA_VISIBLE_DEVICES"))

    @property
    def used_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the recipe takes: the first of those that are visible. Without a recipe: every one."""
        return self.gpus if self.recipe is None else self.gpus[: self.tensor_parallel]


def visible(gpus: tuple[Gpu, ...], selection: str | None) -> tuple[Gpu, ...]:
    """The GPUs of a CUDA_VISIBLE_DEVICES: numbers, or beginnings of UUIDs; it ends at the first that is none.

    Numbers are NVML's (by PCI address), as vLLM takes them; CUDA counts so where CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if selection is None:
        return gpus
    chosen: list[Gpu] = []
    for word in (item.strip() for item in selection.split(",")):
        if word.isdecimal():
            found = [gpu for gpu in gpus if gpu.index == int(word)]
        else:
            found = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def device_kind(recipe: Recipe) -> str:
    """``cuda`` or ``cpu``, as the recipe says; where it does not, what its variables or the installed vLLM point to."""
    if recipe.device is not None:
        return recipe.device.kind
    if any(name.startswith("VLLM_CPU_") for name in recipe.environment):
        return CPU
    return installed_variant() or CUDA


def installed_variant() -> str | None:
    """``cpu`` or ``cuda``, as the local version of the installed vLLM says; None where it says neither."""
    local = (version_of("vllm") or "").rpartition(".")[2]
    return local if local in (CPU, CUDA) else None


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution; None where it is not there. Imports nothing of it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
