"""Runs bench/probes/broken.cu: proof that a checker finds what it is there for."""

from __future__ import annotations

import ctypes

import torch
from cuda_probe import Probe

MISTAKES = ("memcheck", "racecheck", "initcheck")
_THREADS = 64


def run(checker: str) -> None:
    """Make the mistake that a checker must find. Memory comes straight from CUDA, not out of torch's cache."""
    words = torch.empty(_THREADS, dtype=torch.int32, device="cuda")
    arguments = ctypes.c_int(MISTAKES.index(checker)), ctypes.c_uint64(words.data_ptr()), ctypes.c_int(_THREADS)
    Probe("broken").launch(1, _THREADS, *arguments)
    torch.cuda.synchronize()
    print(f"the mistake for {checker} was made")
