"""The CPU platform's decisions about this model, and the point where a worker attaches the rest."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from . import capability
from .capability import Capability

_MARK = "_moet_w2_cpu"


def attach(platform: type, found: Capability) -> None:
    """Wrap two class methods of vLLM's CPU platform. Idempotent.

    Raises:
        UnsupportedError: the platform lacks a method, or vLLM loaded its extension before a limit was imposed.
    """
    if not capability.loaded_for(found):
        raise UnsupportedError(
            f"vLLM loaded its C extension for another instruction set than {found.isa}: the triton.backends entry "
            "point of moet-w2 did not run first; reinstall moet-w2 so that its entry points are registered"
        )
    for name in ("check_and_update_config", "register_triton_kernel_overrides"):
        if not isinstance(_raw(platform, name), classmethod):
            raise UnsupportedError(
                f"{platform.__qualname__}.{name} is not a class method of this vLLM; this vLLM is not the pinned one"
            )
    if getattr(platform, _MARK, False):
        return
    _keep_scheduling(platform)
    _attach_in_worker(platform, found)
    setattr(platform, _MARK, True)


def _raw(platform: type, name: str) -> Any:
    return next((vars(base)[name] for base in platform.__mro__ if name in vars(base)), None)


def _keep_scheduling(platform: type) -> None:
    """Keep chunked prefill and prefix caching as configured for DeepSeek-V4.

    vLLM turns both off where the processor has no AMX, on the ground that the model's kernels need it. They do not:
    the compiled ones run on AVX512-BF16 and the plain ones anywhere, and all of them address the cache by position.
    """
    original = _raw(platform, "check_and_update_config").__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        configured = (scheduler.enable_chunked_prefill, cache.enable_prefix_caching, scheduler.max_num_batched_tokens)
        original(cls, vllm_config)
        hf_config = getattr(vllm_config.model_config, "hf_config", None)
        if getattr(hf_config, "model_type", None) == "deepseek_v4":
            scheduler.enable_chunked_prefill, cache.enable_prefix_caching, scheduler.max_num_batched_tokens = configured

    platform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[attr-defined]


def _attach_in_worker(platform: type, found: Capability) -> None:
    """Attach the rest where vLLM asks the platform for its kernels: in workers only, before the model is built."""
    original = _raw(platform, "register_triton_kernel_overrides").__func__

    def register_triton_kernel_overrides(cls: type) -> None:
        original(cls)
        # vLLM's shim of the CUDA interfaces; it must precede every module of the model runner.
        import vllm.v1.worker.cpu.shm  # noqa: F401

        from . import kernels, linear, moe, ops

        kernels.attach()
        ops.attach()
        linear.attach(found)
        moe.attach(found)

    platform.register_triton_kernel_overrides = classmethod(  # type: ignore[attr-defined]
        register_triton_kernel_overrides
    )
