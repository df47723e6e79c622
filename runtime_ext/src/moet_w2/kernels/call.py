"""The arguments of a call, held against what the kernels take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..errors import UnsupportedError
from . import shapes
from .shapes import Plan

_INTEGERS = (torch.int32, torch.int64, torch.uint32, torch.int16)
_ALIGNMENT = 16  # kernels read and write 16 bytes at a time


class Call(NamedTuple):
    """One call's arguments, as :func:`moet_w2.kernels.experts.experts` takes them."""

    x: torch.Tensor
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    storage: torch.Tensor
    experts: int
    width: int
    limit: float | None = None
    rows: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    padding: torch.Tensor | None = None
    reads: torch.Tensor | None = None

    @property
    def plan(self) -> Plan:
        """The call's descriptor."""
        return shapes.plan(self.experts, self.x.shape[1], self.width, *self.topk_ids.shape)


def check(call: Call) -> None:
    """Hold a call's arguments against what the kernels take.

    Raises:
        UnsupportedError: names the argument, what it is and the remedy.
    """
    x, ids = call.x, call.topk_ids
    if x.dim() != 2:
        raise _refusal("x", x, "bfloat16 [tokens, hidden]", "pass the hidden states of a batch")
    if ids.dim() != 2 or ids.dtype not in _INTEGERS:
        raise _refusal("topk_ids", ids, f"integer [{x.shape[0]}, top_k]", "pass the router's ids")
    if not call.topk_weights.is_floating_point():
        raise _refusal("topk_weights", call.topk_weights, f"float {list(ids.shape)}", "pass the router's weights")
    if (call.rows is None) != (call.slots is None):
        raise UnsupportedError("rows and slots of a correction come together; pass both or neither")
    (tokens, hidden), device = x.shape, x.device
    layer = shapes.plan(call.experts, hidden, call.width, 1, ids.shape[1])
    routed = (tokens, ids.shape[1])
    for name, tensor, dtype, shape in (
        ("x", x, torch.bfloat16, (tokens, hidden)),
        ("topk_ids", ids, None, routed),
        ("topk_weights", call.topk_weights, None, routed),
        ("storage", call.storage, torch.uint8, (layer.layer_bytes,)),
        ("rows", call.rows, torch.uint8, (-1, layer.row_bytes)),
        ("slots", call.slots, torch.int32, (call.experts,)),
        ("counts", call.counts, torch.int64, (call.experts,)),
        ("padding", call.padding, torch.bool, (tokens,)),
        ("reads", call.reads, torch.int64, (2,)),
    ):
        if tensor is None:
            continue
        found = tensor.shape
        if (dtype is not None and tensor.dtype != dtype) or (found != shape and not _any_rows(found, shape)):
            wanted = "" if dtype is None else _name(dtype) + " "
            raise _refusal(name, tensor, f"{wanted}{list(shape)}", "pass what the layer was made for")
        if not tensor.is_contiguous():
            raise _refusal(name, tensor, "a contiguous tensor", "call .contiguous() on it")
        if tensor.device != device:
            raise _refusal(name, tensor, f"a tensor on {device}", f"move it to {device}")
    for name, tensor in (("x", x), ("storage", call.storage), ("rows", call.rows)):
        if tensor is not None and tensor.data_ptr() % _ALIGNMENT:
            remedy = f"start it at a multiple of {_ALIGNMENT} bytes"
            raise _refusal(name, tensor, f"an address that is a multiple of {_ALIGNMENT}", remedy)


def _any_rows(found: torch.Size, shape: tuple[int, ...]) -> bool:
    """Whether a shape whose first number is -1, for any, is met."""
    return shape[0] == -1 and len(found) == len(shape) and found[1:] == shape[1:]


def pieces(call: Call, out: torch.Tensor) -> Iterator[tuple[Call, torch.Tensor]]:
    """A checked call cut into runs of tokens that the routing kernel can count, each with its rows of ``out``."""
    tokens, top_k = call.topk_ids.shape
    step = shapes.MAX_ROUTES // top_k
    if 0 < tokens <= step:
        yield call, out
        return
    for start in range(0, tokens, step):
        run = slice(start, start + step)
        padding = None if call.padding is None else call.padding[run]
        yield (
            call._replace(
                x=call.x[run],
                topk_weights=call.topk_weights[run],
                topk_ids=call.topk_ids[run],
                padding=padding,
            ),
            out[run],
        )


def _refusal(name: str, tensor: torch.Tensor, expected: str, remedy: str) -> UnsupportedError:
    found = f"{_name(tensor.dtype)} {list(tensor.shape)}"
    if not tensor.is_contiguous():
        found += f" with strides {list(tensor.stride())}"
    return UnsupportedError(f"{name} is {found} on {tensor.device}; the CUDA kernels need {expected}: {remedy}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
