"""What the original system reported of its two profiles, beside what this model predicts for them."""

from __future__ import annotations

from dataclasses import dataclass

from . import memory, prefill, speed
from .machine import GIB, Machine, card
from .model import FLASH, Model, from_config
from .settings import Settings
from .speed import Load

RUNTIME_BYTES = int(0.92 * GIB)
"""What the original system's vLLM, an older one, counted beside all other lines of memory.py. Taken from one
measurement, not computed: it is what the 378,490 KV tokens of its 300k profile (RTX PRO 6000, utilization 0.974, layers
43 to 45 mapped) leave, rounded to 0.01 GiB. Its 512k profile is the check."""


@dataclass(frozen=True)
class Profile:
    """One profile on one RTX PRO 6000 (96 GB), DeepSeek-V4-Flash-0731, DSpark with four draft tokens.

    Attributes:
        name: its name.
        settings: how it was served.
        mapped: keys of the layers in host memory.
        kv_tokens: KV cache size that vLLM reported.
        decode: tokens/s by concurrent requests, exact 1,024 tokens each.
        prefill: (tokens, seconds to the first token) of one uncached prompt.
    """

    name: str
    settings: Settings
    mapped: tuple[int, ...]
    kv_tokens: int
    decode: dict[int, float]
    prefill: tuple[int, float]


PROFILES = (
    Profile("300k", Settings(), (43, 44, 45), 378_490, {1: 89.82, 4: 152.31}, (250_000, 80.499)),
    Profile(
        "512k",
        Settings(context=524_288, utilization=0.98446),
        (42, 43, 44, 45),
        901_924,
        {1: 68.23, 4: 126.83},
        (500_000, 274.690),
    ),
)

NOTES = (
    "The 300k KV tokens are the one figure that the model was fitted to (0.92 GiB for libraries, graphs, step peak); "
    "the 512k profile is the check. vLLM 0.32 counts more there, so its KV caches are smaller. It reserves 0.11 GiB "
    "more attention workspace for 524,288 tokens than for 300,000; the reported figures leave 0.05 GiB to everything "
    "that grows with the context.",
    "Decode rates depend on how many draft tokens the text lets the target accept, which was not reported: the column "
    "'implied' says how many tokens a step must have given. The original system's kernels are not these.",
    "Prefill: the part that grows with the square of the prompt was fitted to the two times; the rest was not.",
)


def compare(model: Model | None = None, machine: Machine | None = None) -> list[dict[str, float | str]]:
    """Rows of predicted and reported figures.

    Args:
        model: default: DeepSeek-V4-Flash.
        machine: default: the card it was reported of.
    """
    model = from_config(FLASH) if model is None else model
    machine = card() if machine is None else machine
    rows: list[dict[str, float | str]] = []
    for profile in PROFILES:
        found = memory.account(model, machine, profile.settings, profile.mapped, RUNTIME_BYTES)
        rows.append(_row(profile.name, "KV tokens", found.kv_tokens, profile.kv_tokens))
        for requests, rate in profile.decode.items():
            step = speed.decode(model, machine, profile.settings, profile.mapped, Load(requests))
            row = _row(profile.name, f"decode tokens/s, {requests}x", step.tokens_per_s, rate)
            rows.append(row | {"implied_tokens_per_step": rate * step.step_seconds / requests})
        tokens, seconds = profile.prefill
        predicted = prefill.seconds(model, machine, profile.settings, profile.mapped, tokens)
        rows.append(_row(profile.name, f"seconds to first token, {tokens:,}", predicted, seconds))
    return rows


def _row(profile: str, what: str, predicted: float, reported: float) -> dict[str, float | str]:
    return {
        "profile": profile,
        "what": what,
        "predicted": predicted,
        "reported": reported,
        "off_by": predicted / reported - 1,
    }
