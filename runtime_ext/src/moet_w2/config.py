"""W2Config: the settings parsed once, validated once, frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from . import envs
from .errors import ConfigError, HostMemoryError
from .topology import normalize_pci

LOAD_FORMAT = "moet"
"""vLLM's name for the loader that reads ready planes (:mod:`moet_w2.loader`)."""
SYNTHETIC_FORMAT = "moet_synthetic"
"""vLLM's name for the loader that computes every weight (:mod:`moet_w2.synthetic_loader`)."""
DUMMY_FORMAT = "dummy"
"""vLLM's own name for a start without weights: experts are computed, the rest is nearly zero."""
SYNTHETIC_ORIGIN = "synthetic"
"""What the audit says of a layer that was computed."""
DELTA_POLICIES = ("freq", "lru")
_AUTO = "auto"
CPU_ISAS = ("amx", "avx512_bf16", "avx512", "avx2")


@dataclass(frozen=True)
class W2Config:
    """How this process serves routed experts.

    Attributes:
        enabled: serve W2 planes where ``--quantization moet_w2`` asks for them.
        mapped_layers: ascending layer keys placed in host memory.
        delta_exclude_layers: ascending layer keys that never take a correction slot.
        mapped_numa_node: the NUMA node mapped layers must lie on, or None to resolve it.
        mapped_pci: the normalised PCI address of the GPU to use, or None to take the visible one.
        audit_path: where the audit is written, or None for nowhere.
        delta_gib: GiB of correction slots, 0 for none.
        delta_policy: which experts get a slot.
        prefill_fp4: whether prefill reads resident slots.
        store_dir: folder of the correction pack.
        planes_cache: folder of ready planes, or None to build every layer from the checkpoint.
        load_workers: threads that read ready planes.
        load_batch_layers: layers handed to them at once.
        cpu_isa: highest CPU instruction set to use, or None for what the machine has.
        delta_auto: as many correction slots as fit beside the KV cache; ``delta_gib`` is 0 then.
        trace: file that receives the routing trace, or None.
        block_scaled: calls of up to 8 tokens take the unvalidated block-scaled kernels.
        profile: name of what is served, or None.
    """

    enabled: bool = True
    mapped_layers: tuple[int, ...] = ()
    delta_exclude_layers: tuple[int, ...] = ()
    mapped_numa_node: int | None = None
    mapped_pci: str | None = None
    audit_path: Path | None = None
    delta_gib: float = 0.0
    delta_policy: str = "freq"
    prefill_fp4: bool = True
    store_dir: Path | None = None
    planes_cache: Path | None = None
    load_workers: int = 4
    load_batch_layers: int = 12
    cpu_isa: str | None = None
    delta_auto: bool = False
    trace: Path | None = None
    block_scaled: bool = False
    profile: str | None = None


def parse(settings: envs.Settings) -> W2Config:
    """Turn raw settings into a :class:`W2Config`.

    Raises:
        ConfigError: a value is malformed; the message names the variable, the value and what is allowed.
    """
    config = W2Config(
        enabled=_flag("VLLM_MOE_W2", settings.enabled, default=True),
        mapped_layers=layer_keys("VLLM_MOE_W2_MAPPED_LAYERS", settings.mapped_layers),
        delta_exclude_layers=layer_keys("VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS", settings.delta_exclude_layers),
        mapped_numa_node=_node("VLLM_MOE_W2_MAPPED_NUMA_NODE", settings.mapped_numa_node),
        mapped_pci=_pci("VLLM_MOE_W2_MAPPED_PCI", settings.mapped_pci),
        audit_path=Path(settings.mapped_audit_path) if settings.mapped_audit_path else None,
        delta_gib=_gib("VLLM_MOE_W2_DELTA_GB", settings.delta_gb),
        delta_policy=_choice("VLLM_MOE_W2_DELTA_POLICY", settings.delta_policy, DELTA_POLICIES) or "freq",
        prefill_fp4=_flag("VLLM_MOE_W2_PREFILL_FP4", settings.prefill_fp4, default=True),
        store_dir=Path(settings.store_dir) if settings.store_dir else None,
        planes_cache=Path(settings.planes_cache) if settings.planes_cache else None,
        load_workers=_count("VLLM_MOE_W2_FAST_LOAD_WORKERS", settings.fast_load_workers, 4, most=64),
        load_batch_layers=_count("VLLM_MOE_W2_FAST_LOAD_BATCH_LAYERS", settings.fast_load_batch_layers, 12, most=12),
        cpu_isa=_choice("VLLM_MOE_W2_CPU_ISA", settings.cpu_isa, CPU_ISAS),
        delta_auto=settings.delta_gb == _AUTO,
        trace=Path(settings.trace) if settings.trace else None,
        block_scaled=_flag("VLLM_MOE_W2_BLOCK_SCALED", settings.block_scaled, default=False),
        profile=settings.profile,
    )
    corrected = bool(config.delta_gib or config.delta_auto)
    if corrected and config.store_dir is None:
        raise ConfigError(f"VLLM_MOE_W2_DELTA_GB={settings.delta_gb} needs VLLM_MOE_W2_STORE_DIR; name a folder")
    if config.trace is not None and not corrected:
        raise ConfigError(f"VLLM_MOE_W2_TRACE={config.trace} needs VLLM_MOE_W2_DELTA_GB; name a size or unset TRACE")
    return config


def check_load_format(config: W2Config, load_format: str) -> None:
    """Refuse a cache or a store that vLLM's load format would never fill.

    Raises:
        ConfigError: one is set and the load format is not ours.
    """
    for name, folder, others in (
        ("VLLM_MOE_W2_PLANES_CACHE", config.planes_cache, ()),
        # Rows of a model that is computed are computed too; the folder then keeps the warm set alone.
        ("VLLM_MOE_W2_STORE_DIR", config.store_dir, (SYNTHETIC_FORMAT, DUMMY_FORMAT)),
    ):
        if folder is not None and load_format not in (LOAD_FORMAT, *others):
            raise ConfigError(
                f"{name}={folder} needs --load-format {LOAD_FORMAT}, not {load_format}; add it or unset {name}"
            )


def load() -> W2Config:
    """Read and parse the process environment."""
    return parse(envs.read())


def layer_keys(name: str, text: str | None) -> tuple[int, ...]:
    """Parse ``"42,43"`` into ascending, distinct layer keys; None gives none.

    Raises:
        ConfigError: an item is not a plain non-negative integer, or a key is named twice.
    """
    if text is None:
        return ()
    keys: list[int] = []
    for item in text.split(","):
        item = item.strip()
        if not (item.isascii() and item.isdecimal()):
            raise ConfigError(f"{name}={text!r}: {item!r} is not a layer key; give integers such as 42,43")
        key = int(item)
        if key in keys:
            raise ConfigError(f"{name}={text!r}: layer key {key} is named twice; name each layer once")
        keys.append(key)
    return tuple(sorted(keys))


def _flag(name: str, text: str | None, default: bool) -> bool:
    choice = _choice(name, text, ("0", "1"))
    return default if choice is None else choice == "1"


def _choice(name: str, text: str | None, allowed: tuple[str, ...]) -> str | None:
    if text is None or text in allowed:
        return text
    raise ConfigError(f"{name}={text!r} is not allowed; use one of {', '.join(allowed)}")


def _node(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name}={text!r} is not a NUMA node; give a number such as 0")
    return int(text)


def _count(name: str, text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise ConfigError(f"{name}={text!r} is not allowed; use a number from 1 to {most}")
    return int(text)


def _gib(name: str, text: str | None) -> float:
    if text is None or text == _AUTO:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise ConfigError(f"{name}={text!r} is not a size; give GiB, such as 6 or 0.25, auto, or 0 for none")
    return value


def _pci(name: str, text: str | None) -> str | None:
    try:
        return None if text is None else normalize_pci(text)
    except HostMemoryError as error:
        raise ConfigError(f"{name}: {error}") from None
