"""Everything of a synthetic model but its routed experts: whole checkpoint tensors, drawn from (seed, name).

A tensor does not depend on how it is split: a rank draws the whole one, and vLLM's own loaders take their share. So a
model is the same at every tensor-parallel size, on devices of one kind (torch's generators give other numbers on a
CPU than on a GPU). The values keep hidden states O(1) at any depth and logits distinct, so that greedy decoding is a
function of the prompt more than of rounding:

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
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import official
from .official import Tensor
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
_DTYPES = {
    official.BF16: torch.bfloat16,
    official.F32: torch.float32,
    official.I32: torch.int32,
    official.FP8: torch.float8_e4m3fn,
    official.E8M0: torch.float8_e8m0fnu,
}
_EMBEDDING, _HEAD = "embed.weight", "head.weight"
_MARKOV = re.compile(r"^(mtp\.\d+\.markov_head\.)markov_w[12]\.weight$")
_ONES = re.compile(r"norm\.weight$|(^|\.)hc_\w+_scale$")
_TO_RESIDUAL = re.compile(r"\.(wo_b|shared_experts\.w2)\.(weight|scale)$")


class Dense:
    """Dense tensors of a checkpoint that lies nowhere.

    Attributes:
        config: content of its config.json.
        seed: what they are drawn from.
        device: where they are drawn.
    """

    def __init__(self, config: Mapping[str, Any], seed: int, device: torch.device) -> None:
        self.config, self.seed, self.device = config, seed, device

    def tensors(self, drafting: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and values, one tensor at a time: of the DSpark draft, or of everything else."""
        listed = official.draft if drafting else official.target
        for tensor in listed(self.config, experts=False):
            yield tensor.name, self.draw(tensor)

    @torch.no_grad()
    def draw(self, tensor: Tensor) -> torch.Tensor:
        """The values of one tensor, whole, on the device, in the checkpoint's dtype."""
        name, dtype = tensor.name, _DTYPES[tensor.dtype]
        if tensor.dtype == official.E8M0:
            byte = 127 + _exponent(name, tensor.fan_in)
            return torch.full(tensor.shape, byte, dtype=torch.uint8, device=self.device).view(dtype)
        value = torch.empty(tensor.shape, dtype=dtype, device=self.device)
        if tensor.dtype == official.I32:
            self._route(value, name)
        elif name == _HEAD:
            self._head(value)
        elif match := _MARKOV.match(name):
            # The second matrix is the first, a row further on: the token that follows.
            self._normal(value, f"{match.group(1)}markov_w1.weight", MARKOV_STD)
            return value.roll(1, 0) if "markov_w2" in name else value
        elif tensor.dtype == official.FP8:
            # The scale is a power of two, so the rest of the factor goes into the weights.
            self._normal(value, name, _std(name, tensor.fan_in) / 2.0 ** _exponent(name, tensor.fan_in))
        elif tensor.fan_in:
            self._normal(value, name, _std(name, tensor.fan_in))
        else:
            value.fill_(1.0 if _ONES.search(name) else 0.0)
        return value

    def _head(self, value: torch.Tensor) -> None:
        self._normal(value, _HEAD, value.shape[1] ** -0.5)
        embedding = torch.empty_like(value)
        self._normal(embedding, _EMBEDDING, 1.0)
        share = LEANING * value.shape[1] ** -0.5
        value[1:].add_(embedding[:-1], alpha=share)
        value[0].add_(embedding[-1], alpha=share)
        # vLLM builds models under a default of bfloat16, whose random numbers have 256 values and no tail.
        drawn = torch.rand(
            len(value), 1, dtype=torch.float32, generator=self._generator("rows of the head"), device=self.device
        )
        value *= (1.0 - drawn).pow(-1.0 / TAIL).to(value.dtype)

    def _route(self, table: torch.Tensor, name: str) -> None:
        """Hash routing ``[tokens, k]``: k distinct experts for each token."""
        experts, generator = self.config["n_routed_experts"], self._generator(name)
        rows = max(1, _CHUNK // experts)
        for part in table.split(rows):
            drawn = torch.rand(len(part), experts, dtype=torch.float32, generator=generator, device=self.device)
            part.copy_(drawn.argsort(dim=1)[:, : part.shape[1]])

    def _normal(self, value: torch.Tensor, name: str, std: float) -> None:
        """Normal values of any floating dtype, drawn in float32, some rows at a time."""
        generator = self._generator(name)
        for part in value.split(max(1, _CHUNK // value.shape[1])):
            drawn = torch.empty(part.shape, dtype=torch.float32, device=self.device)
            part.copy_(drawn.normal_(0, std, generator=generator))

    def _generator(self, name: str) -> torch.Generator:
        number = int.from_bytes(hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:8], "little") >> 1
        return torch.Generator(self.device).manual_seed(number)


def unreached(model: torch.nn.Module, reached: set[str], shared: tuple[str, ...] = ()) -> list[str]:
    """Parameters that hold bytes and got no tensor.

    Args:
        model: as ``load_weights`` has left it.
        reached: the names that it returned.
        shared: beginnings of names that another model fills.
    """
    parameters = model.named_parameters()
    return [name for name, held in parameters if held.numel() and name not in reached and not name.startswith(shared)]


def _std(name: str, fan_in: int) -> float:
    if name == _EMBEDDING:
        return 1.0
    return fan_in**-0.5 * (2.0**-RESIDUAL_BITS if _TO_RESIDUAL.search(name) else 1.0)


def _exponent(name: str, fan_in: int) -> int:
    """Power of two of an FP8 weight's scale."""
    return round(math.log2(_std(name, fan_in) / _FP8_STD))
