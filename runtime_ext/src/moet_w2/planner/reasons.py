"""Why a placement is chosen, or what would have to change where none fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .machine import Machine
from .memory import Memory
from .model import Model
from .placements import DEFAULT, Assumptions, Placement, gib, roomy_utilization, smallest
from .settings import Settings

_SHORTEST = 4096
"""A context that is worth proposing."""


def of(model: Model, machine: Machine, placements: Sequence[Placement], number: int, given: Assumptions) -> list[str]:
    """Why the placement at ``number`` is the one, a line each."""
    chosen = placements[number]
    settings, found = chosen.settings, chosen.memory
    lines = ["no layer is mapped: all fit on the card, and each mapped one costs time in every step"]
    if number:
        lines = [
            f"{number} layers are mapped, as few as will do; with {number - 1}: {placements[number - 1].status}",
            f"the host locks {found.mapped_bytes:,} bytes; {gib(given.host_reserve)} are left to the system",
        ]
    drafts = [key for key in chosen.mapped if model.is_draft(key)]
    targets = [key for key in chosen.mapped if not model.is_draft(key)]
    if drafts:
        lines += _drafts(model, settings, drafts, _cost(model, placements, True))
    if targets:
        more = chosen.prefill_seconds - placements[number - 1].prefill_seconds
        chunk = more * settings.batched / settings.context
        lines.append(
            f"{keys(targets)} {'as well' if drafts else 'from the end'}: each costs {_cost(model, placements, False)} "
            f"a step with one request, and {chunk * 1e3:,.0f} ms a chunk of {settings.batched:,} prompt "
            "tokens; among target layers the model knows no difference"
        )
    if settings.seqs > 1:
        lines.append(_kv_cache(settings, found, given))
    if settings.correction_bytes:
        lines.append(_correction(model, machine, settings, given, mapped=number > 0))
    lines.append(
        f"a utilization of {settings.utilization:g} leaves {gib(machine.cuda_bytes - found.share)} of the card alone; "
        "vLLM does not start where other programs hold more"
    )
    lines.append(_spare(machine, settings, found))
    return lines


def against(
    model: Model, machine: Machine, settings: Settings, placements: Sequence[Placement], given: Assumptions
) -> list[str]:
    """Why nothing fits, and what would, each change by itself."""
    best = placements[-1]
    lines = [f"nothing fits; with {len(best.mapped)} of {model.layers} layers mapped: {best.status}"]
    if machine.link_gbs is None:
        lines.append("there is no link, so no layer can be mapped")
    if settings.correction_bytes:
        lines.append(_correction(model, machine, settings, given))
    context = longest(model, machine, settings, given)
    if context >= _SHORTEST:
        fit = smallest(model, machine, replace(settings, context=context), given)
        if fit is not None:
            lines.append(
                f"a context of {context:,} tokens would fit, with {len(fit.mapped)} mapped layers: one request decodes "
                f"{fit.decode[1].tokens_per_s:.1f} tokens/s"
            )
    short_of_host = [each for each in placements if each.status.startswith("host memory")]
    if short_of_host:
        needed = short_of_host[0].memory.mapped_bytes + given.host_reserve
        lines.append(f"{gib(needed)} of host memory would do, for {len(short_of_host[0].mapped)} mapped layers")
    return lines


def longest(model: Model, machine: Machine, settings: Settings, given: Assumptions = DEFAULT) -> int:
    """The longest context, a multiple of 1,024, that some placement fits; 0 where none does."""
    # The attention workspace shrinks once, beyond 256 Ki (memory.workspace): on either side more tokens take more.
    for low, high in ((256, model.rope_positions // 1024), (0, 256)):
        least = low
        while low < high:
            middle = (low + high + 1) // 2
            fits = smallest(model, machine, replace(settings, context=1024 * middle), given) is not None
            low, high = (middle, high) if fits else (low, middle - 1)
        if low > least:
            return 1024 * low
    return 0


def keys(some: Sequence[int]) -> str:
    """Keys of neighbouring layers for a person."""
    return f"layer {some[0]}" if len(some) == 1 else f"layers {some[0]} to {some[-1]}"


def _drafts(model: Model, settings: Settings, drafts: list[int], cost: str) -> list[str]:
    lines = [
        f"{keys(drafts)} first: a draft layer runs over {settings.speculative} tokens of a request, a target layer "
        f"over {settings.query}, and after a chunk of prompt over as few; each costs {cost} a step with one request"
    ]
    if settings.correction_bytes and set(drafts) <= settings.uncorrected(model):
        lines.append(
            f"{keys(drafts)} take no correction slot: a draft's mistake costs a rejected token, never a wrong one, so "
            "the pool serves the target alone"
        )
    return lines


def _kv_cache(settings: Settings, found: Memory, given: Assumptions) -> str:
    return (
        f"KV cache: {gib(found.kv_needed)} for one request of {settings.context:,} tokens, {gib(found.kv_reserve)} for "
        f"{settings.seqs - 1} others that hold {given.others:.0%} of that between them, of {gib(found.kv_bytes)}"
    )


def _correction(model: Model, machine: Machine, settings: Settings, given: Assumptions, mapped: bool = True) -> str:
    taken = settings.slots(model) * model.geometry.correction_row_bytes
    pool = f"the correction pool takes {gib(taken)}, as much as {taken / model.geometry.nbytes:.1f} layers"
    if not mapped:
        return pool
    without = smallest(model, machine, replace(settings, correction_bytes=0), given)
    if without is None:
        then = "nothing would fit either"
    elif without.mapped:
        then = f"{len(without.mapped)} mapped layers would do"
    else:
        then = "none would need to be mapped"
    return f"{pool}; without it {then}"


def _cost(model: Model, placements: Sequence[Placement], draft: bool) -> str:
    """Milliseconds that mapping one layer of a kind adds to a step with one request."""
    for before, after in zip(placements, placements[1:], strict=False):
        if model.is_draft(after.mapped[0]) == draft:
            return f"{(after.decode[1].step_seconds - before.decode[1].step_seconds) * 1e3:.1f} ms"
    return "nothing"


def _spare(machine: Machine, settings: Settings, found: Memory) -> str:
    prompt = f"of that a prompt of {settings.context:,} tokens"
    if found.safe:
        return f"{prompt} leaves {gib(found.spare)} free"
    then = f"leaves {gib(found.spare)} free" if found.spare >= 0 else f"takes {gib(-found.spare)} more than there is"
    return f"{prompt} {then}: a utilization of {roomy_utilization(machine, found):g} leaves enough to rely on"
