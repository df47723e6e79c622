"""Structured output: the grammar's bits close tokens.

The interpreted kernel fails outright ("mask has unsupported dtype"): it reshapes a mask of integers, which the
interpreter does not take for a mask, and the engine dies with the first structured request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .launch import Grid


def grammar_mask(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    logits_indices_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    bitmask_ptr: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    MASK_STRIDE: int,
    BLOCK_SIZE: int,
) -> Any:
    """Set logits to -inf where the row's bit is 0. Rows of a request beyond its logits are not used.

    ``bitmask_ptr`` is int32 [rows, ceil(vocab_size / 32)], lowest bit first; ``logits_indices_ptr`` holds
    ``request * MASK_STRIDE + position`` for each row.
    """
    starts = cu_num_logits_ptr.tolist()
    for row, mapped in enumerate(logits_indices_ptr[: grid[0]].tolist()):
        request, position = divmod(mapped, MASK_STRIDE)
        if position < starts[request + 1] - starts[request]:
            bits = np.unpackbits(bitmask_ptr[row].numpy().view(np.uint8), bitorder="little")[:vocab_size]
            logits_ptr[starts[request] + position, :vocab_size][torch.from_numpy(bits == 0)] = -torch.inf
