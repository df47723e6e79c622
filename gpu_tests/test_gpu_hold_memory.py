"""A card that is held to a size has that much left, and gets the rest back."""

import os

import hold_memory
import pytest
import torch
from serving_memory import Held

pytestmark = pytest.mark.gpu
LEFT_GIB = 3.0


def free() -> int:
    return torch.cuda.mem_get_info()[0]


def test_a_held_card_has_so_much_left_and_no_more() -> None:
    # What PyTorch keeps of an earlier test it would give back to the driver for an allocation that must fail here.
    torch.cuda.empty_cache()
    before, index = free(), (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").partition(",")[0]
    held = Held(LEFT_GIB, index)
    try:
        assert 0 <= free() - int(LEFT_GIB * 2**30) < hold_memory.GRAIN
        assert held.told["free_mib"] == free() // hold_memory.MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int((LEFT_GIB + 0.25) * 2**30), dtype=torch.uint8, device="cuda")
        torch.empty(int((LEFT_GIB - 0.25) * 2**30), dtype=torch.uint8, device="cuda")
    finally:
        held.close()
    torch.cuda.empty_cache()
    assert free() >= before - hold_memory.GRAIN


def test_a_card_that_has_less_is_refused() -> None:
    with pytest.raises(RuntimeError, match="are free, less than the"):
        Held(10_000.0)
