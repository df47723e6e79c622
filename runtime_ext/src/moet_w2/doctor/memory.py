"""Checks of host memory: the node that mapped layers belong on, and every limit on what they need there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import preflight, topology
from ..checkpoint import CheckpointReport
from ..config import W2Config
from ..geometry import LayerGeometry
from .report import Check, fail, ok, skipped
from .subject import CPU, Subject

GIB = 1 << 30
_LOCKED_ONLY = "the memlock limit"
"""preflight's name of the one limit that holds for locked memory alone."""


@dataclass(frozen=True)
class Need:
    """Bytes of host memory that a server takes at least, and those of them that it locks."""

    total: int
    locked: int


def need(subject: Subject, settings: W2Config, report: CheckpointReport) -> Need:
    """What the recipe takes. On CPUs the model and its KV cache lie in host memory, on a GPU mapped layers alone.

    What is no routed expert counts with its size in the checkpoint; it takes more where it is converted.
    """
    w2 = subject.w2 and settings.enabled
    locked = len(settings.mapped_layers) * report.geometry.nbytes if w2 else 0
    if subject.kind != CPU:
        return Need(locked, locked)
    stored = (report.target_layers + report.draft_layers) * expert_bytes(report.geometry)
    experts = subject.recipe.expect.w2_layers * report.geometry.nbytes if w2 else stored
    kv_cache = subject.served_environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    gib = int(kv_cache) if kv_cache.isdecimal() else 0
    return Need(experts + max(0, report.nbytes - stored) + gib * GIB, locked)


def expert_bytes(geometry: LayerGeometry) -> int:
    """Bytes of one layer's routed experts in the checkpoint: MXFP4 codes and scales."""
    return geometry.experts * (geometry.correction_row_bytes + geometry.scale_row_bytes)


def localities(subject: Subject, settings: W2Config | None) -> list[topology.Locality]:
    """Where mapped layers belong, one for each GPU in use; one in all where CPUs compute.

    Raises:
        HostMemoryError: a node is unknown, a guard disagrees, or the process may not use the node.
    """
    sysfs, limits = subject.root / "sys", topology.allowed(subject.root / "proc/self/status")
    guard = settings.mapped_numa_node if settings is not None else None
    if subject.kind == CPU or not subject.gpus:
        return [topology.cpu_locality(guard, sysfs, limits)]
    guard_pci = settings.mapped_pci if settings is not None else None
    return [topology.gpu_locality(gpu.pci, guard, guard_pci, sysfs, limits) for gpu in subject.used_gpus]


def check_node(subject: Subject, found: list[topology.Locality]) -> Iterator[Check]:
    """Where each GPU, or this process, is at home."""
    for locality in found:
        whose = "" if locality.pci is None else f"GPU {locality.pci}: "
        others = "" if len(locality.nodes) == 1 else f" of {', '.join(map(str, locality.nodes))}"
        yield ok("NUMA node", f"{whose}node {locality.node}{others} ({locality.reason})")


def check_limits(subject: Subject, needed: Need | None, found: list[topology.Locality]) -> Iterator[Check]:
    """Every limit on host memory against what the server takes there; without a recipe, what each leaves."""
    limits = {limit.source: limit for locality in found or [None] for limit in preflight.limits(locality, subject.root)}
    if _LOCKED_ONLY not in limits:
        yield ok("memlock limit", "none for this process (it is privileged, or the limit is unlimited)")
    for limit in limits.values():
        thing, value = limit.source.removeprefix("the "), f"{gib(limit.nbytes)} left"
        if needed is None:
            # A shell's memlock limit is often a few MiB: no fault before somebody wants to lock more.
            yield ok(thing, value)
            continue
        wanted, what = _wanted(limit.source, needed, found)
        value = f"{value}, {gib(wanted)} {what}"
        yield ok(thing, value) if limit.nbytes >= wanted else fail(thing, value, limit.remedy)
    if not limits:
        yield skipped("host memory", f"{subject.root / 'proc'} tells nothing of it")


def _wanted(source: str, needed: Need, found: list[topology.Locality]) -> tuple[int, str]:
    """What of it a limit holds for: a node and the memlock limit for locked memory, every other one for all of it."""
    if source == _LOCKED_ONLY:
        return needed.locked, "to be locked for mapped layers"
    here = sum(source == f"NUMA node {locality.node}" for locality in found)
    if here:
        return needed.locked * here // len(found), "of mapped layers belong there"
    return needed.total, "needed"


def gib(nbytes: int) -> str:
    """Bytes for a person."""
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
