"""Is there memory for the longest prompt that the recipe admits? By the planner's account; a server is the proof."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..errors import MoetError
from ..planner import memory, predict
from ..planner.machine import GIB, HOST_RESERVE, Machine
from .report import Check, ok, skipped, warn
from .subject import CUDA, Subject

THING = "GPU memory in a long prompt"


def check(subject: Subject) -> Iterator[Check]:
    """What vLLM's utilization leaves of the card, against what no profile of vLLM sees. It never ends a start."""
    if subject.kind != CUDA or not subject.used_gpus or not subject.w2:
        return
    if subject.tensor_parallel > 1:
        yield skipped(THING, "the account is of one GPU")
        return
    config = subject.command.model_path / "config.json"
    try:
        model, settings, mapped = predict.of_recipe(subject.recipe, json.loads(config.read_text()))
    except (MoetError, OSError, ValueError) as error:
        yield skipped(THING, f"no account can be made: {error}")
        return
    gpu = subject.used_gpus[0]
    machine = Machine(gpu.total, HOST_RESERVE, 1.0, None, gpu.capability[0])
    found = memory.account(model, machine, settings, mapped)
    value = f"{found.spare / GIB:.2f} GiB free by the planner's account, at {settings.context:,} tokens"
    if found.safe:
        yield ok(THING, value)
        return
    least = f"{memory.LEAST_SPARE / GIB:.1f} GiB should be"
    yield warn(THING, f"{value}; {least}", "lower gpu-memory-utilization; `moet plan --recipe` lists every byte")
