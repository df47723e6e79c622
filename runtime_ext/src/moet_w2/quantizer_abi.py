"""What the bytes of ready planes depend on besides the checkpoint. No torch: the cache is judged without it."""

QUANTIZER_ABI = 2
"""Changes whenever the same checkpoint would give other bytes (:mod:`moet_w2.codebook`); part of the cache key."""
ZERO_MODE = "sign-or-checkerboard-95"
"""Names the rule for zeros; part of the cache key."""
