"""The ``moet_synthetic`` load format: a model of real geometry from a folder that holds only config.json.

Experts are computed where they live (:mod:`moet_w2.synthetic`); this fills the parameters that are left. Their values
keep hidden states O(1) at any depth and logits distinct, so that greedy decoding is a function of the prompt and not
of rounding:

    embeddings                  standard normal
    matrices                    normal over the root of their fan-in; FP8 ones with matching power-of-two scales
    projections to the residual the same, smaller by synthetic.RESIDUAL_BITS powers of two
    head                        leans to the token whose number follows, which the draft's Markov head knows too; norms
                                of rows have a heavy tail, so that who leads otherwise leads clearly
    norms, mixing scales        one
    biases, sinks, positions    zero
    hash routing                distinct experts for each token
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator

import torch
from vllm.config import ModelConfig

from . import runtime
from .cache import phases
from .loader import MoetLoader
from .synthetic import RESIDUAL_BITS

TAIL = 4.0
"""Tail index of the norms of the head's rows: the largest of 129,280 is some 19 times the smallest."""
LEANING = 0.5
"""Share of the preceding token's embedding in a row of the head: about every second token is the one that follows."""
MARKOV_STD = 0.5
"""Of both matrices of the draft's Markov head: the token that follows stands out among all others."""

_FP8_STD = 4.0
"""Of FP8 weights before their scale: far from both ends of e4m3."""
_CHUNK = 1 << 26  # values drawn at once: 256 MiB in float32
_ONES = re.compile(r"norm\.weight$|^hc_\w+_scale$|\.hc_\w+_scale$|(^|\.)(q_norm|kv_norm)\.weight$")
_TO_RESIDUAL = re.compile(r"\.(wo_b|down_proj)\.weight$")
_EMBEDDING = re.compile(r"(^|\.)embed_tokens\.weight$")
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class SyntheticLoader(MoetLoader):
    """vLLM's own construction and post-processing around weights that nobody has read."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        computed = runtime.get().synthetic
        seed = 0 if computed is None else computed.seed
        started = phases.of_process()
        with started.measure("draft rest" if self.drafting else "target rest"):
            for module, prefix in _modules(model):
                fill(module, prefix, f"{type(model).__name__} {seed}")
            connect(dict(model.named_parameters()), f"{type(model).__name__} {seed}")
            finish = getattr(model, "process_weights_after_loading", None)
            if finish is not None:  # what the model's own load_weights does at its end
                finish()


def _modules(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str]]:
    """Modules with parameters of their own, by name; those of W2 layers hold no bytes."""
    for prefix, module in model.named_modules():
        if not hasattr(module, "w2") and any(True for _ in module.parameters(recurse=False)):
            yield module, prefix


@torch.no_grad()
def fill(module: torch.nn.Module, prefix: str, seed: str) -> None:
    """Give a module's own parameters values.

    Args:
        module: as vLLM has built it, nothing post-processed.
        prefix: its name in the model.
        seed: with a parameter's name, what its values are drawn from.
    """
    own = dict(module.named_parameters(recurse=False))
    for name, parameter in own.items():
        full = f"{prefix}.{name}" if prefix else name
        value = parameter.data
        generator = _generator(f"{seed} {full}", value.device)
        if name.startswith("weight_scale"):
            weight = own["weight"]
            std = _std(f"{prefix}.weight", weight.shape[1]) / _FP8_STD
            _power_of_two(value, round(math.log2(std)))
        elif value.dtype in _FP8:
            fan_in = value.shape[1]
            wanted = _std(full, fan_in)
            # The scale is a power of two, so the rest of the factor goes into the weights.
            _normal(value, wanted / 2.0 ** round(math.log2(wanted / _FP8_STD)), generator)
        elif not value.dtype.is_floating_point:
            _experts(value, generator)
        elif value.ndim == 2 and name != "ape":
            _normal(value, _std(full, value.shape[1]), generator)
        else:
            value.fill_(1.0 if _ONES.search(full) else 0.0)


@torch.no_grad()
def connect(parameters: dict[str, torch.nn.Parameter], seed: str) -> None:
    """Let tokens follow from each other, for the model and its draft alike: a draft that is never right says little.

    Args:
        parameters: of a model whose parameters are filled, by name; the draft's own head is the target's later.
        seed: as in :func:`fill`.
    """
    head, embedding = parameters.get("lm_head.weight"), parameters.get("model.embed_tokens.weight")
    if head is not None and embedding is not None and head.shape == embedding.shape:
        head.data.add_(embedding.data.roll(1, 0), alpha=LEANING * head.shape[1] ** -0.5)
        _heavy_rows(head.data, _generator(f"{seed} rows of the head", head.device))
    first = parameters.get("model.markov_head.markov_w1.weight")
    second = parameters.get("model.markov_head.markov_w2.weight")
    if first is not None and second is not None:
        first.data.mul_(MARKOV_STD * first.shape[1] ** 0.5)
        rows = min(len(first), len(second))
        second.data.zero_()
        second.data[:rows].copy_(first.data[:rows].roll(1, 0))


def _generator(seed: str, device: torch.device) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little") >> 1
    return torch.Generator(device).manual_seed(number)


def _std(name: str, fan_in: int) -> float:
    if _EMBEDDING.search(name):
        return 1.0
    return fan_in**-0.5 * (2.0**-RESIDUAL_BITS if _TO_RESIDUAL.search(name) else 1.0)


def _power_of_two(scale: torch.Tensor, exponent: int) -> None:
    if scale.dtype in (torch.float8_e8m0fnu, torch.uint8):
        scale.view(torch.uint8).fill_(127 + exponent)
    else:
        scale.fill_(2.0**exponent)


def _normal(value: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Normal values of any floating dtype, drawn in float32, some rows at a time."""
    rows = max(1, _CHUNK // max(1, value[0].numel()))
    for first in range(0, value.shape[0], rows):
        part = value[first : first + rows]
        drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device).normal_(0, std, generator=generator)
        part.copy_(drawn)


def _heavy_rows(value: torch.Tensor, generator: torch.Generator) -> None:
    """Multiply each row by a Pareto number of tail index :data:`TAIL`."""
    # vLLM builds models under a default of bfloat16, whose random numbers have 256 values and no tail.
    drawn = torch.rand(value.shape[0], 1, dtype=torch.float32, generator=generator, device=value.device)
    value *= (1.0 - drawn).pow(-1.0 / TAIL).to(value.dtype)


def _experts(table: torch.Tensor, generator: torch.Generator) -> None:
    """Hash routing ``[tokens, k]``: k distinct experts for each token, as many experts as the table already names."""
    experts = int(table.max()) + 1 if table.numel() else 1
    rows = max(1, _CHUNK // max(1, experts))
    for first in range(0, table.shape[0], rows):
        part = table[first : first + rows]
        drawn = torch.rand(part.shape[0], experts, dtype=torch.float32, generator=generator, device=table.device)
        order = drawn.argsort(dim=1)
        part.copy_(order[:, : part.shape[1]])
