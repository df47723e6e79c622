"""Holds a card to a size: takes its memory until just so much is free, and keeps it until standard input ends.

    python bench/hold_memory.py --leave-gib N

Plain cudaMalloc: one large piece, then 2 MiB at a time, which is how the driver gives memory out. One line of JSON on
standard output says when it is held: ``held_mib`` that were taken, ``free_mib`` that the driver then calls free. The
free memory is all that a server may use, its own CUDA context with it.

Of CUDA_VISIBLE_DEVICES the first card is taken. Exit status 1 where less is free to begin with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
GRAIN = 2 * MIB
"""What the driver gives out at a time."""
MARGIN = 64 * MIB
"""Left out of the large piece: the driver takes some memory for itself to map that."""


def take(leave: int, free: Callable[[], int], allocate: Callable[[int], Any]) -> list[Any]:
    """Allocate until at most a grain more than ``leave`` bytes is free, and never less.

    Args:
        leave: bytes to leave free.
        free: bytes that are free now.
        allocate: takes so many bytes and gives what holds them.

    Raises:
        MemoryError: less is free from the start, or allocating took nothing.
    """
    held: list[Any] = []
    while (over := free() - leave) >= GRAIN:
        held.append(allocate((over - MARGIN) // GRAIN * GRAIN if over > 2 * MARGIN else GRAIN))
        if free() - leave == over:
            raise MemoryError(f"{over // MIB} MiB were allocated and as much is free as before")
    if over < 0:
        raise MemoryError(f"{free() // MIB} MiB are free, less than the {leave // MIB} that are to be left")
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description="hold a card to a size until standard input ends")
    parser.add_argument("--leave-gib", type=float, required=True, help="GiB that are to be free")
    args = parser.parse_args()
    # PyTorch's allocator takes small tensors from pieces of 20 MiB; this has each be a cudaMalloc of its own.
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import torch

    torch.cuda.init()
    before = torch.cuda.mem_get_info()[0]
    try:
        held = take(
            int(args.leave_gib * 1024) * MIB,
            lambda: torch.cuda.mem_get_info()[0],
            lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cuda"),
        )
    except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError) as error:
        raise SystemExit(f"hold_memory: {error}") from None
    free = torch.cuda.mem_get_info()[0]
    print(json.dumps({"held_mib": (before - free) // MIB, "free_mib": free // MIB}), flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main()
