"""Checks of the driver and the GPUs: is there one, does our code run on it, is it free, how is it connected?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from .. import pinned
from ..checkpoint import CheckpointReport
from ..config import W2Config
from ..errors import KernelError
from ..kernels import cubins
from .memory import expert_bytes
from .nvml import Absent, Gpu, Link, Process
from .report import Check, fail, ok, skipped, told, warn
from .subject import CPU, CUDA, Subject

GIB = 1 << 30
KERNELS = ("routing", "decode", "prefill", "combine", "quantize")
"""Sources of kernels/src that every server on a GPU loads."""
_BUSY = 0  # performance state P0: clocks and links as high as they go
_DEFAULT_UTILIZATION = 0.92  # vLLM's --gpu-memory-utilization where a recipe names none (config/cache.py)


def check(subject: Subject) -> Iterator[Check]:
    """All of them. For a recipe that computes on CPUs none applies; for one that needs a GPU its absence fails."""
    if subject.kind == CPU:
        yield skipped("GPU", "not applicable: the recipe computes on CPUs")
        return
    if isinstance(subject.driver, Absent):
        why = f"no NVIDIA driver answers ({subject.driver.why})"
        if subject.kind is None:
            yield skipped("GPU", f"{why}; a recipe that needs a GPU cannot be served here")
        else:
            yield fail("GPU", why, subject.driver.remedy)
        return
    yield _driver(subject)
    yield from _selection(subject)
    for gpu in subject.used_gpus:
        yield _capability(gpu, subject)
        yield _memory(gpu, subject)
        yield _link(gpu, subject)


def _driver(subject: Subject) -> Check:
    driver, wanted = subject.driver, pinned.load(CUDA).cuda
    value = f"{driver.version}, runs CUDA up to {driver.cuda[0]}.{driver.cuda[1]}"
    # CUDA Compatibility guide, "Minor version compatibility": code built by any release of a major version runs on
    # every driver of that major version.
    if driver.cuda[0] < wanted[0]:
        return fail(
            "driver",
            f"{value}; this distribution is built with CUDA {wanted[0]}.{wanted[1]}",
            f"install a driver that runs CUDA {wanted[0]}.0 or later",
        )
    return ok("driver", value)


def _selection(subject: Subject) -> Iterator[Check]:
    found, chosen = subject.driver.gpus, subject.gpus
    selection = subject.served_environ.get("CUDA_VISIBLE_DEVICES")
    told = "" if selection is None else f" (CUDA_VISIBLE_DEVICES={selection})"
    value = f"{len(chosen)} of {len(found)} visible{told}"
    if len(chosen) < subject.tensor_parallel or not chosen:
        yield fail(
            "GPUs",
            f"{value}; {subject.tensor_parallel} needed",
            "correct CUDA_VISIBLE_DEVICES or serve a recipe for fewer GPUs",
        )
    elif any(gpu.mig for gpu in chosen):
        yield fail(
            "GPUs",
            f"{value}; GPU {next(gpu.index for gpu in chosen if gpu.mig)} is divided (MIG)",
            "serve on a whole GPU; a part of one was never tried",
        )
    elif len({gpu.name for gpu in found}) > 1 and subject.served_environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield warn(
            "GPUs",
            f"{value}, of several kinds; CUDA may count them in another order than nvidia-smi",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    else:
        yield ok("GPUs", value)


def _capability(gpu: Gpu, subject: Subject) -> Check:
    thing, value = f"GPU {gpu.index} capability", f"{gpu.name}, {gpu.capability[0]}.{gpu.capability[1]}"
    try:
        for source in KERNELS:
            cubins.find(source, gpu.capability)  # not compiled for this GPU, or not the file that was built
    except KernelError as error:
        return told(thing, error, "run `make kernels`, or install the distribution again")
    device = None if subject.recipe is None else subject.recipe.device
    meant = None if device is None else device.capability
    if meant and f"{gpu.capability[0]}.{gpu.capability[1]}" not in meant:
        return warn(
            thing,
            f"{value}; the recipe is made for {', '.join(meant)}",
            "its speed and its room for KV will differ from what the recipe says; `moet plan` proposes another",
        )
    return ok(thing, value)


def _memory(gpu: Gpu, subject: Subject) -> Check:
    thing = f"GPU {gpu.index} memory"
    held = gpu.total - gpu.free
    value = f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
    holders = _holders(gpu, held, subject.root)
    if subject.recipe is None:
        return ok(thing, f"{value}{holders}")
    card = None if subject.recipe.device is None else subject.recipe.device.vram_gib
    if card and gpu.total < 0.97 * card * GIB:
        # Cards of one size differ by what the driver keeps (ECC, its own tables): 3% covers those seen.
        return fail(
            thing,
            f"{value}; the recipe is made for a card of {card:g} GiB",
            "serve a recipe for this card: `moet plan` proposes one",
        )
    share = subject.recipe.engine.get("gpu-memory-utilization", _DEFAULT_UTILIZATION)
    needed = math.ceil(gpu.total * share)
    if gpu.free < needed:
        return fail(
            thing,
            f"{value}; gpu-memory-utilization {share:g} needs {needed / GIB:.1f}{holders}",
            "end what holds the rest, or lower gpu-memory-utilization in the recipe",
        )
    return ok(thing, f"{value}, {needed / GIB:.1f} needed{holders}")


def check_weights(subject: Subject, settings: W2Config, report: CheckpointReport) -> Iterator[Check]:
    """Do the weights that stay on the GPU fit into the recipe's share of it at all? What KV gets is for vLLM to say."""
    if subject.kind == CPU or not subject.used_gpus or not subject.w2:
        return
    on_device = subject.recipe.expect.w2_layers - len(settings.mapped_layers)
    layers = on_device * report.geometry.nbytes
    rest = max(0, report.nbytes - (report.target_layers + report.draft_layers) * expert_bytes(report.geometry))
    pool = int(settings.delta_gib * GIB)
    needed = (layers + rest) // subject.tensor_parallel + pool
    smallest = min(gpu.total for gpu in subject.used_gpus)
    room = smallest * subject.recipe.engine.get("gpu-memory-utilization", _DEFAULT_UTILIZATION)
    value = f"{needed / GIB:.1f} GiB at least ({on_device} W2 layers, the rest of the checkpoint, correction), "
    value += f"{room / GIB:.1f} GiB may be used"
    if needed > room:
        yield fail("GPU weights", value, "map more layers, correct less, or use a larger card: `moet plan` proposes")
    else:
        yield ok("GPU weights", value)


def _holders(gpu: Gpu, held: int, root: Path) -> str:
    if not gpu.processes:
        return "" if held < GIB else f"; {held / GIB:.1f} GiB are held by nobody that can be seen from here"
    return "; held by " + ", ".join(_holder(process, root) for process in gpu.processes[:4])


def _holder(process: Process, root: Path) -> str:
    try:
        name = (root / f"proc/{process.pid}/comm").read_text().strip()
    except OSError:
        name = "a process of another container or user"
    size = "" if process.nbytes is None else f" {process.nbytes / GIB:.1f} GiB"
    return f"{name} ({process.pid}){size}"


def _link(gpu: Gpu, subject: Subject) -> Check:
    thing, link = f"GPU {gpu.index} PCIe link", gpu.link
    if link is None:
        return skipped(thing, "the driver tells nothing of a link")
    value = f"generation {link.generation} x{link.width} now, at most {link.most_generation} x{link.most_width}"
    mapped = subject.recipe is not None and bool(subject.recipe.w2.mapped_layers)
    cost = "; mapped layers are read at its speed" if mapped else ""
    if link.width < link.most_width:
        return warn(thing, f"{value}{cost}", "put the card into a slot with all lanes, or look for a loose riser")
    if link.generation < link.most_generation:
        return warn(thing, *_slow(gpu, link, value, cost))
    return ok(thing, value)


def _slow(gpu: Gpu, link: Link, value: str, cost: str) -> tuple[str, str]:
    if gpu.state is None or gpu.state > _BUSY:
        state = "" if gpu.state is None else f" (P{gpu.state})"
        return (
            f"{value}; the GPU is at rest{state} and lowers its link to save power",
            "nothing to do if it rises under load: look again while a server runs",
        )
    return f"{value}{cost}", "the GPU is busy, so this is all the slot gives: see the firmware's PCIe settings"
