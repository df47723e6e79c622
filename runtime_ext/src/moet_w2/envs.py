"""The only reader of the environment. Everything else takes values from :func:`read`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .errors import ConfigError

PREFIX = "VLLM_MOE_W2"

SETTINGS: dict[str, str] = {
    "VLLM_MOE_W2": "1 (default); 0 leaves experts and parsers as they are upstream",
    "VLLM_MOE_W2_MAPPED_LAYERS": "comma-separated layer keys whose planes live in locked host memory",
    "VLLM_MOE_W2_MAPPED_NUMA_NODE": "guard: the NUMA node that mapped layers must lie on",
    "VLLM_MOE_W2_MAPPED_PCI": "guard: the PCI address of the GPU this process must use",
    "VLLM_MOE_W2_MAPPED_AUDIT_PATH": "file that receives the placement audit (JSON, replaced atomically)",
    "VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS": "comma-separated layer keys that never take a correction slot",
    "VLLM_MOE_W2_DELTA_GB": "GiB of correction slots, or auto: what a KV cache of given size leaves; 0 (default): none",
    "VLLM_MOE_W2_DELTA_POLICY": "which experts get a slot: freq (default) or lru",
    "VLLM_MOE_W2_PREFILL_FP4": "1 (default): prefill reads resident slots too; 0: it reads the base only",
    "VLLM_MOE_W2_TRACE": "file that receives the routing trace, for moet sim; needs correction",
    "VLLM_MOE_W2_STORE_DIR": "folder of the correction pack, filled by the first start; needs --load-format moet",
    "VLLM_MOE_W2_PLANES_CACHE": "folder of ready planes, filled by the first start; needs --load-format moet",
    "VLLM_MOE_W2_FAST_LOAD_WORKERS": "threads that read ready planes (default 4)",
    "VLLM_MOE_W2_FAST_LOAD_BATCH_LAYERS": "layers handed to them at once (default 12, at most 12)",
    "VLLM_MOE_W2_BLOCK_SCALED": "1: block-scaled kernels for up to 8 tokens on sm_120, unvalidated; 0 (default): none",
    "VLLM_MOE_W2_PROFILE": "name that log, audit and metrics give to what is served; moet serve sets the recipe's",
    "VLLM_MOE_W2_CPU_ISA": "caps the instruction set used on a CPU: amx, avx512_bf16, avx512 or avx2",
}
"""Every setting that this version honours, with its meaning."""


@dataclass(frozen=True)
class Settings:
    """Raw text of every setting, exactly as found. ``None`` where a setting is absent or empty."""

    enabled: str | None = None
    mapped_layers: str | None = None
    mapped_numa_node: str | None = None
    mapped_pci: str | None = None
    mapped_audit_path: str | None = None
    delta_exclude_layers: str | None = None
    delta_gb: str | None = None
    delta_policy: str | None = None
    prefill_fp4: str | None = None
    store_dir: str | None = None
    planes_cache: str | None = None
    fast_load_workers: str | None = None
    fast_load_batch_layers: str | None = None
    cpu_isa: str | None = None
    trace: str | None = None
    block_scaled: str | None = None
    profile: str | None = None


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Collect the package's settings from ``environ`` (default: the process environment).

    Raises:
        ConfigError: a ``VLLM_MOE_W2*`` name is unknown; the nearest known one is suggested.
    """
    source = os.environ if environ is None else environ
    for name in sorted(source):
        if name.startswith(PREFIX) and name not in SETTINGS:
            raise ConfigError(_refusal(name, source[name]))

    def text(suffix: str) -> str | None:
        return source.get(PREFIX + suffix, "").strip() or None

    return Settings(
        enabled=text(""),
        mapped_layers=text("_MAPPED_LAYERS"),
        mapped_numa_node=text("_MAPPED_NUMA_NODE"),
        mapped_pci=text("_MAPPED_PCI"),
        mapped_audit_path=text("_MAPPED_AUDIT_PATH"),
        delta_exclude_layers=text("_DELTA_EXCLUDE_LAYERS"),
        delta_gb=text("_DELTA_GB"),
        delta_policy=text("_DELTA_POLICY"),
        prefill_fp4=text("_PREFILL_FP4"),
        store_dir=text("_STORE_DIR"),
        planes_cache=text("_PLANES_CACHE"),
        fast_load_workers=text("_FAST_LOAD_WORKERS"),
        fast_load_batch_layers=text("_FAST_LOAD_BATCH_LAYERS"),
        cpu_isa=text("_CPU_ISA"),
        trace=text("_TRACE"),
        block_scaled=text("_BLOCK_SCALED"),
        profile=text("_PROFILE"),
    )


def declare(known: MutableMapping[str, Callable[[], Any]]) -> None:
    """Add the settings to vLLM's table of known variables, so that its own check of ``VLLM_*`` names passes them."""
    for name in SETTINGS:
        known.setdefault(name, partial(os.environ.get, name))


def _refusal(name: str, value: str) -> str:
    near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.0)[0]
    return f"{name}={value!r} is not a setting of moet_w2: did you mean {near}? Otherwise unset it"
