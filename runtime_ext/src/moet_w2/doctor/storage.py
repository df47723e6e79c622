"""Checks of the folders that a first start fills: what lies there already, and is there room for the rest?

Names, sizes and sidecars alone are looked at; nothing is made and no payload is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import launch_checks
from ..cache import eligibility, key, layout
from ..cache_root import JIT_CACHES
from ..checkpoint import CheckpointReport
from ..config import W2Config
from ..geometry import LayerGeometry
from ..placement import LayerPlan
from ..shard import Shard
from .memory import gib
from .report import Check, fail, ok, skipped, warn
from .subject import CPU, Subject

_KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
"""Permissions say that root may write there; no file can be made all the same."""

JIT_BYTES = 2 << 30
"""What is asked for the caches of compilers together: a first start on a GPU writes some hundred MiB."""


@dataclass(frozen=True)
class Folder:
    """One folder: what it is for, and the bytes that a start would still write there."""

    thing: str
    path: Path
    missing: int


def check(subject: Subject, settings: W2Config, report: CheckpointReport, plan: LayerPlan) -> Iterator[Check]:
    """State of the planes cache and of the correction pack, then the room for what they lack."""
    folders: list[Folder] = []
    if refused := [*_unusable(settings)]:
        yield from refused
        return
    if subject.command is not None and subject.command.load_format in launch_checks.MADE_UP:
        yield skipped("planes cache", f"not applicable: --load-format {subject.command.load_format} has no checkpoint")
        return
    if settings.planes_cache is None:
        yield skipped(
            "planes cache", "none is used, every start builds all layers; MOET_PLANES_CACHE_DIR names a folder"
        )
    else:
        found, folder = _planes(subject, settings.planes_cache, report)
        folders.append(folder)
        yield found
    if settings.store_dir is None or not (settings.delta_gib or settings.delta_auto):
        yield skipped("correction pack", "not applicable: no expert is corrected (w2.correction.gb is 0)")
    else:
        found, folder = _pack(subject, settings.store_dir, report, plan)
        folders.append(folder)
        yield found
    yield from _room(folders)


def _unusable(settings: W2Config) -> Iterator[Check]:
    """Folders that a start could neither find nor make; one that is there and cannot be written may still be read."""
    for thing, path, variable in (
        ("planes cache", settings.planes_cache, "MOET_PLANES_CACHE_DIR"),
        ("correction pack", settings.store_dir, "MOET_STORE_DIR"),
    ):
        if path is None or path.is_dir():
            continue
        place, remedy = standing(path), f"set {variable} or CACHE_ROOT to a folder that can be written"
        if not place.is_dir():
            yield fail(thing, f"{place} is no folder", remedy)
        elif not writable(place):
            yield fail(thing, f"{path} cannot be made: {place} cannot be written", remedy)


def keys(report: CheckpointReport, size: int) -> list[key.CacheKey]:
    """The cache key of every rank."""
    whole = report.geometry
    share = LayerGeometry(whole.experts, whole.hidden, whole.width // size)
    return [key.make(report, share, Shard(rank, size)) for rank in range(size)]


def _planes(subject: Subject, root: Path, report: CheckpointReport) -> tuple[Check, Folder]:
    """How many layers may be read, the reasons for the others, and the bytes of those."""
    layers = range(subject.recipe.expect.w2_layers)
    misses, missing = [], 0
    for each in keys(report, subject.tensor_parallel):
        judged = eligibility.judge(root, each, layers)
        reasons = [reason for reason in judged.values() if reason is not None]
        misses += reasons
        missing += len(reasons) * (layout.HEAD + each.geometry.nbytes)
    total = len(layers) * subject.tensor_parallel
    folder = Folder("planes cache", root, missing)
    if not misses:
        return ok("planes cache", f"{root}: all {total} layers can be read"), folder
    words = ", ".join(f"{misses.count(reason)} {reason}" for reason in sorted(set(misses)))
    state = f"{root}: {total - len(misses)} of {total} layers can be read ({words})"
    return ok("planes cache", f"{state}; this start builds the rest, {gib(missing)}"), folder


def _pack(subject: Subject, root: Path, report: CheckpointReport, plan: LayerPlan) -> tuple[Check, Folder]:
    """The same for the pack: layers whose rows a sidecar vouches for. Layers that are never corrected have none."""
    layers = [layer for layer in range(subject.recipe.expect.w2_layers) if plan.correctable(layer)]
    absent = missing = 0
    for each in keys(report, subject.tensor_parallel):
        directory = layout.folder(root, each)
        lacking = sum(not _vouched(directory / f"pack-{layer:03d}.json", each.digest, layer) for layer in layers)
        absent += lacking
        missing += lacking * each.geometry.experts * each.geometry.correction_row_bytes
    total = len(layers) * subject.tensor_parallel
    state = f"{root}: rows of {total - absent} of {total} layers"
    if absent:
        state += f"; this start writes the rest, {gib(missing)}"
    return ok("correction pack", state), Folder("correction pack", root, missing)


def _vouched(sidecar: Path, digest: str, layer: int) -> bool:
    try:
        document = json.loads(sidecar.read_text())
        return document["key"] == digest and document["layer"] == layer
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _room(folders: list[Folder]) -> Iterator[Check]:
    """Room on each filesystem for everything that goes there."""
    systems: dict[int, list[tuple[Folder, Path]]] = {}
    for folder in folders:
        place = standing(folder.path)
        if folder.missing and not writable(place):
            yield warn(
                folder.thing,
                f"{place} cannot be written: what this start builds will not be kept",
                "make it writable, or name another folder",
            )
            continue
        systems.setdefault(place.stat().st_dev, []).append((folder, place))
    for members in systems.values():
        place = members[0][1]
        facts = os.statvfs(place)
        free, wanted = facts.f_bavail * facts.f_frsize, sum(folder.missing for folder, _ in members)
        value = f"{gib(free)} free at {place}, {gib(wanted)} to be written"
        if free < wanted:
            names = " and ".join(folder.thing for folder, _ in members)
            yield fail("disk space", f"{value} ({names})", "free space there, or name a folder on a larger disk")
        else:
            yield ok("disk space", value)


def check_jit(subject: Subject) -> Iterator[Check]:
    """Can the compilers that serving needs keep what they build, and is there room for it?"""
    named = [subject.served_environ[cache.variable] for cache in JIT_CACHES if cache.variable in subject.served_environ]
    if subject.kind == CPU and not named:
        yield skipped("JIT caches", "not applicable: the recipe computes on CPUs; CACHE_ROOT would name their folder")
        return
    place = standing(Path(os.path.commonpath(named)) if named else Path.home())
    free = os.statvfs(place)
    room = free.f_bavail * free.f_frsize
    value = f"{place}: {gib(room)} free"
    if not writable(place):
        yield fail("JIT caches", f"{place} cannot be written", "set CACHE_ROOT to a folder that can")
    elif room < JIT_BYTES:
        yield warn("JIT caches", value, f"free {gib(JIT_BYTES)} there, or set CACHE_ROOT to a folder on a larger disk")
    else:
        yield ok("JIT caches", value)


def standing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def writable(place: Path) -> bool:
    """Whether it is a folder in which files can be made."""
    real = place.resolve()
    made_up = any(real.is_relative_to(folder) for folder in _KERNEL_FOLDERS)
    return real.is_dir() and os.access(real, os.W_OK | os.X_OK) and not made_up
