"""Checks of the recipe's own parts: settings, checkpoint, refusals, the address and the files of the server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import audit_ranks, checkpoint, envs, launch_checks, refusals
from ..cache.key import identity
from ..checkpoint import CheckpointReport
from ..config import W2Config
from ..errors import CheckpointError
from .memory import gib
from .report import Check, fail, ok, warn
from .storage import standing, writable
from .subject import CPU, CUDA, Subject

BLOCK_SCALED_CAPABILITY = 12
"""Major compute capability that the block-scaled kernels are made for, as kernels/block_scaled.py has it."""
_OF_PLANES = ("VLLM_MOE_W2_FAST_LOAD_WORKERS", "VLLM_MOE_W2_FAST_LOAD_BATCH_LAYERS")
_OF_CORRECTION = ("VLLM_MOE_W2_STORE_DIR", "VLLM_MOE_W2_DELTA_POLICY", "VLLM_MOE_W2_PREFILL_FP4")
_SETUP = {CPU: "make setup", CUDA: "scripts/build-native.sh cuda"}


def check_refusals(subject: Subject) -> Iterator[Check]:
    """Options and variables that this model, the extension or the chip cannot serve with."""
    capability = subject.used_gpus[0].capability if subject.used_gpus else None
    asked = refusals.from_recipe(subject.recipe, subject.served_environ, subject.kind, capability, subject.w2)
    found = refusals.judge(asked)
    for refusal in found:
        yield fail("option", refusal.value, refusal.remedy)
    if not found:
        yield ok(
            "options",
            f"none of the {len(refusals.RULES)} that cannot be served with; names and values are vLLM's to judge",
        )


def check_settings(subject: Subject) -> Iterator[Check]:
    """What the settings are, after they held against the environment; then the recipe's own variables against it."""
    contradicted = {
        name: value
        for name, value in subject.recipe.environment.items()
        # What the launcher's own variables replace (CACHE_ROOT, CUDA_VISIBLE_DEVICES) is no more the recipe's word.
        if subject.command.env[name] == value != (subject.environ.get(name) or value)
    }
    for name, value in contradicted.items():
        told = f"{name}={subject.environ[name]!r} contradicts the recipe's {value!r}"
        yield fail("settings", told, "unset it or change the recipe")
    if not contradicted:
        given = sum(name.startswith(envs.PREFIX) for name in subject.served_environ)
        yield ok("settings", f"{given} variables {envs.PREFIX}*: known, well formed, as the recipe has them")


def check_effects(subject: Subject, settings: W2Config) -> Iterator[Check]:
    """Settings that this machine cannot serve with, and those that nothing would read."""
    if settings.block_scaled and (other := _not_block_scaled(subject)):
        needs = f"needs a GPU of compute capability {BLOCK_SCALED_CAPABILITY}.x, not {other}"
        yield fail("setting", f"VLLM_MOE_W2_BLOCK_SCALED=1 {needs}", "unset it")
    corrected = settings.delta_gib or settings.delta_auto
    for names, read, why, remedy in (
        (_OF_PLANES, settings.planes_cache, "no ready planes are read", "name their folder by MOET_PLANES_CACHE_DIR"),
        (_OF_CORRECTION, corrected, "no expert is corrected", "set the recipe's w2.correction.gb"),
    ):
        for name in names:
            if not read and (value := subject.served_environ.get(name)):
                # The launcher gives the server what was named to it under a name of its own.
                named = name if subject.environ.get(name) else "MOET_STORE_DIR"
                yield warn("setting", f"{named}={value} has no effect: {why}", f"unset it, or {remedy}")


def _not_block_scaled(subject: Subject) -> str | None:
    """What would serve and cannot run the block-scaled kernels, or None."""
    if subject.kind == CPU:
        return "a CPU"
    versions = (gpu.capability for gpu in subject.used_gpus)
    others = (f"compute capability {major}.{minor}" for major, minor in versions if major != BLOCK_SCALED_CAPABILITY)
    return next(others, None)


def look_for_shards(folder: Path) -> None:
    """Tell of every shard that is missing at once: a download that was cut short lacks many.

    Raises:
        CheckpointError: several of those that the index names are not there; a single fault is told by the inspection.
    """
    try:
        named = sorted(set(json.loads((folder / checkpoint.INDEX).read_text())["weight_map"].values()))
        missing = [shard for shard in named if not (folder / shard).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # the inspection says what is wrong with the index
    if len(missing) > 1:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(named)} shards are missing ({shown}); download the checkpoint again, or "
            "end the download that was cut short"
        )


def check_checkpoint(subject: Subject, report: CheckpointReport) -> Check:
    """What a checkpoint that held against the recipe is."""
    if subject.command.load_format in launch_checks.MADE_UP:
        made_up = f"config.json alone (--load-format {subject.command.load_format}), experts are made up"
        return warn("checkpoint", f"{report.path}: {made_up} and every answer is noise", "for benchmarks only")
    return ok(
        "checkpoint",
        f"{report.path}: {report.target_layers} target and {report.draft_layers} draft layers, {report.tensors:,} "
        f"tensors in whole files, {gib(report.nbytes)}, identity {identity(subject.command.model_path)[:12]}",
    )


def check_port(subject: Subject) -> Check:
    host, port = subject.command.host, subject.command.port
    launch_checks.check_port(host, port)
    local = host in ("localhost", "::1") or host.startswith("127.")
    if not local and not subject.environ.get("VLLM_API_KEY"):
        return warn(
            "port",
            f"{port} on {host} is free, and open to the network without a key",
            "set VLLM_API_KEY or give --api-key-file",
        )
    return ok("port", f"{port} on {host} is free")


def check_program(subject: Subject) -> Check:
    program = Path(subject.command.argv[0])
    if program.is_file():
        return ok("program", str(program))
    remedy = f"set up the serving environment with: {_SETUP[subject.kind]}"
    return fail("program", f"{program} does not exist", remedy)


def check_audit(audit: Path) -> Check:
    """Whether a start can write its audit there, and takes away nobody's file by it."""
    place = standing(audit.parent)
    if audit.is_dir():
        return fail("audit", f"{audit} is a folder", "set W2_AUDIT_PATH to a file in it")
    if not writable(place):
        return fail("audit", f"{audit} cannot be written ({place})", "set W2_AUDIT_PATH")
    audit_ranks.check_replaceable(audit)
    return ok("audit", f"{audit} can be written")


def program() -> Path:
    """The ``vllm`` beside this interpreter."""
    return Path(sys.executable).with_name("vllm")
