"""Small widths and engine options that a CPU serves too, for benchmarks that are tried before a GPU is at hand."""

from __future__ import annotations

from typing import Any

TINY = {"moe_intermediate_size": 256, "num_hash_layers": 1, "n_routed_experts": 64}
"""What a tiny model has otherwise than the demo checkpoint: planes of half its width must still be whole tiles."""
TINY_ENGINE = {
    "max_model_len": 1024,
    "max_num_batched_tokens": 1024,
    "kv_cache_dtype": "auto",
    "kv_cache_memory_bytes": None,
    "compilation_config": {},
    "enforce_eager": True,
    "async_scheduling": False,
}
"""None takes an option away."""
TINY_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB of KV cache; without it every rank takes a share of all memory, and two of them more than there is."""


def options(engine: dict[str, Any], tiny: bool, changed: dict[str, Any]) -> dict[str, Any]:
    """Engine options, those of a tiny model if it is one, and what a caller changes."""
    made = engine | (TINY_ENGINE if tiny else {}) | changed
    return {name: value for name, value in made.items() if value is not None}
