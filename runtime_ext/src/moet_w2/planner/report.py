"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .cards import Proposal
from .choose import Plan
from .machine import Machine
from .memory import KV_CACHE, LEAST_SPARE, Memory
from .placements import Assumptions, Placement, gib
from .predict import Prediction
from .reported import NOTES

_NEIGHBOURS = 2
"""Placements that are listed before and after the chosen one."""


def text(plan: Plan, machine: Machine) -> str:
    """The plan for a person."""
    lines = [_machine(machine)]
    if plan.chosen is None:
        return "\n".join([*lines, "", *_reasons(plan)])
    chosen = plan.chosen
    lines += ["", f"map {','.join(map(str, chosen.mapped)) or 'no layer'}", "", *_bytes(chosen), ""]
    lines += [*_rates(chosen), "", *_reasons(plan), "", *_table(plan)]
    return "\n".join(lines)


def prediction_text(
    prediction: Prediction,
    machine: Machine,
    mapped: tuple[int, ...],
    context: int,
    fault: str | None = None,
    remedies: Sequence[str] = (),
) -> str:
    """A given placement for a person.

    Args:
        prediction: what follows from it; without rates where it does not fit.
        machine: the card, its host and the link.
        mapped: keys of the layers in host memory.
        context: tokens of the longest prompt.
        fault: why the host cannot hold the mapped layers, if so.
        remedies: what to change.
    """
    found = prediction.memory
    lines = [_machine(machine), "", f"mapped: {','.join(map(str, mapped)) or 'no layer'}", ""]
    lines += _purposes(found)
    verdict = f"does not fit: it needs {gib(found.kv_needed)}"
    if found.fits:
        verdict = "fits" if fault is None else "fits on the card"
        verdict += "" if found.roomy else ", without room for other requests beside one of full length"
    cache = f"KV cache size {found.kv_tokens:,} tokens" if found.kv_bytes > 0 else "no room for a KV cache"
    lines += ["", f"{cache}; a context of {context:,} {verdict}", ""]
    if fault is not None:
        lines += [f"the mapped layers do not fit: {fault}", ""]
    if not found.safe:
        free = f"{gib(found.spare)} free, less than the {gib(LEAST_SPARE)} that should be"
        free = free if found.spare >= 0 else f"{gib(-found.spare)} too little"
        lines += [f"while a prompt of {context:,} tokens runs: {free}", ""]
    if remedies:
        lines += [*(f"- {remedy}" for remedy in remedies), ""]
    for requests, step in prediction.decode.items():
        lines.append(_rate(requests, step.tokens_per_s, step.step_seconds, step.tokens_per_step))
        lines.append("    " + ", ".join(f"{cause} {seconds * 1e3:.2f} ms" for cause, seconds in step.seconds.items()))
    for tokens, seconds in prediction.prefill_seconds.items():
        lines.append(f"prefill of {tokens:,} tokens: {seconds:,.1f} s")
    return "\n".join(lines).rstrip()


def document(plan: Plan, machine: Machine, given: Assumptions) -> dict[str, Any]:
    """The plan as JSON-serialisable values: bytes, seconds, tokens a second."""
    return {
        "machine": asdict(machine),
        "assumptions": asdict(given),
        "chosen": None if plan.chosen is None else list(plan.chosen.mapped),
        "reasons": list(plan.reasons),
        "placements": [_placement(each) for each in plan.placements],
    }


def prediction_document(
    prediction: Prediction,
    machine: Machine,
    mapped: tuple[int, ...],
    given: Assumptions,
    fault: str | None = None,
    remedies: Sequence[str] = (),
) -> dict[str, Any]:
    """A given placement as JSON-serialisable values; the arguments are those of the text, and what was assumed."""
    return {
        "machine": asdict(machine),
        "assumptions": asdict(given),
        "mapped": list(mapped),
        "fits": prediction.memory.fits and fault is None,
        "host_fault": fault,
        "remedies": list(remedies),
        **_memory(prediction.memory),
        "decode": _decode(prediction.decode),
        "prefill_seconds": {str(tokens): seconds for tokens, seconds in prediction.prefill_seconds.items()},
    }


def comparison(rows: list[dict[str, Any]]) -> str:
    """Predicted beside reported figures."""
    lines = [f"{'profile':<9}{'what':<34}{'predicted':>12}{'reported':>12}{'off by':>9}{'implied':>9}"]
    for row in rows:
        digits = 0 if row["reported"] > 1000 else 2
        implied = row.get("implied_tokens_per_step")
        lines.append(
            f"{row['profile']:<9}{row['what']:<34}{row['predicted']:>12,.{digits}f}{row['reported']:>12,.{digits}f}"
            f"{row['off_by']:>+9.1%}" + (f"{implied:>9.2f}" if implied is not None else "")
        )
    return "\n".join([*lines, "", *NOTES])


def proposals(found: Sequence[Proposal]) -> str:
    """Placements of several cards, a line each."""
    counts = next((tuple(each.placement.decode) for each in found if each.placement is not None), ())
    heading = f"{'card':<22}{'context':>9}{'utilization':>13}{'correction':>12}{'mapped':>8}"
    heading += f"{'host memory':>13}{'KV tokens':>11}"
    lines = [heading + "".join(f"{f'{count}x tok/s':>10}" for count in counts)]
    for each in found:
        line = f"{each.card.name:<22}{each.settings.context:>9,}{each.settings.utilization:>13.3f}"
        line += f"{gib(each.settings.correction_bytes):>12}"
        place = each.placement
        if place is None:
            lines.append(f"{line}  nothing fits")
            continue
        rates = "".join(f"{step.tokens_per_s:>10.1f}" for step in place.decode.values())
        lines.append(
            f"{line}{len(place.mapped):>8}{gib(place.memory.mapped_bytes):>13}{place.memory.kv_tokens:>11,}{rates}"
        )
    return "\n".join(lines)


def proposals_document(found: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Placements of several cards as JSON-serialisable values."""
    return [
        {
            "card": each.card.name,
            "machine": asdict(each.card.machine),
            "context": each.settings.context,
            "utilization": each.settings.utilization,
            "correction_bytes": each.settings.correction_bytes,
            "placement": None if each.placement is None else _placement(each.placement),
        }
        for each in found
    ]


def _machine(machine: Machine) -> str:
    link = "no link" if machine.link_gbs is None else f"link {machine.link_gbs:,.0f} GB/s"
    card = "card: {} as CUDA reports it" if machine.sm else "no card: {}"
    return (
        f"{card.format(gib(machine.cuda_bytes))}, {machine.hbm_gbs:,.0f} GB/s; {link}; host: {gib(machine.host_bytes)}"
    )


def _bytes(chosen: Placement) -> list[str]:
    found = chosen.memory
    lines = _purposes(found)
    lines.append(f"KV cache size {found.kv_tokens:,} tokens, as vLLM will report it for {chosen.settings.context:,}")
    return lines


def _purposes(found: Memory) -> list[str]:
    cache = (KV_CACHE, found.kv_bytes) if found.kv_bytes >= 0 else ("missing, before any KV cache", -found.kv_bytes)
    free = "free" if found.spare >= 0 else "missing"
    rows = [*found.device.items(), cache, ("together: utilization of the card", found.share)]
    rows += [*found.beyond.items(), (f"{free} while a longest prompt runs", abs(found.spare))]
    rows.append(("mapped layers, in host memory", found.mapped_bytes))
    return [f"{name:<36}{nbytes:>17,}  {gib(nbytes):>11}" for name, nbytes in rows]


def _rates(chosen: Placement) -> list[str]:
    lines = [
        _rate(requests, step.tokens_per_s, step.step_seconds, step.tokens_per_step)
        for requests, step in chosen.decode.items()
    ]
    context = chosen.settings.context
    return [*lines, f"prefill of {context:,} tokens, roughly: {chosen.prefill_seconds:,.0f} s"]


def _rate(requests: int, tokens_per_s: float, seconds: float, per_step: float) -> str:
    return (
        f"decode, {requests} request{'s' if requests > 1 else ''}: {tokens_per_s:.1f} tokens/s "
        f"({seconds * 1e3:.1f} ms a step, {per_step:.2f} tokens a step and request)"
    )


def _reasons(plan: Plan) -> list[str]:
    return [f"- {reason}" for reason in plan.reasons]


def _table(plan: Plan) -> list[str]:
    at = next(n for n, each in enumerate(plan.placements) if each is plan.chosen)
    rows = plan.placements[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]
    counts = sorted(rows[0].decode)
    lines = [f"{'mapped':>6}{'KV tokens':>12}" + "".join(f"{f'{n}x tok/s':>11}" for n in counts) + "  "]
    for each in rows:
        # What does not fit has no rate.
        rates = "".join(f"{each.decode[n].tokens_per_s:>11.1f}" if each.memory.fits else f"{'-':>11}" for n in counts)
        lines.append(f"{len(each.mapped):>6}{each.memory.kv_tokens:>12,}{rates}  {each.status}")
    return lines


def _placement(each: Placement) -> dict[str, Any]:
    return {
        "mapped": list(each.mapped),
        "status": each.status,
        **_memory(each.memory),
        "decode": _decode(each.decode),
        "prefill_seconds": each.prefill_seconds,
    }


def _memory(found: Memory) -> dict[str, Any]:
    return {
        "device_bytes": found.device | {KV_CACHE: found.kv_bytes},
        "share_bytes": found.share,
        "mapped_bytes": found.mapped_bytes,
        "kv_needed_bytes": found.kv_needed,
        "kv_reserve_bytes": found.kv_reserve,
        "kv_tokens": found.kv_tokens,
        "beyond_bytes": found.beyond,
        "spare_bytes": found.spare,
    }


def _decode(steps: Any) -> dict[str, Any]:
    return {
        str(requests): {
            "tokens_per_s": step.tokens_per_s,
            "step_seconds": step.step_seconds,
            "seconds": step.seconds,
            "tokens_per_step": step.tokens_per_step,
            "link_bytes": step.link_bytes,
        }
        for requests, step in steps.items()
    }
