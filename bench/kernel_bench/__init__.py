"""What bench/kernels.py and gpu_tests/ share: cases, data, a float64 reference, launches, timing.

cases.py        random cases by a seed: shape, tokens, tier, routing
data.py         one layer's codes and scales, packed for the kernels and as they are
exact.py        the layer in float64
chain.py        runs of the kernels over poisoned memory, whole or one at a time
correctness.py  a case held against everything it must hold
traffic.py      bytes that a call must move
timing.py       microseconds of replayed graphs, and what the memory gives
speed.py, mapped.py, stock.py, quick.py, activations.py    one measurement each
"""
