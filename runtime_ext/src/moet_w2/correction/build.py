"""The correction tier of a vLLM worker: made from the settings, attached to the moments that it needs.

    load_model                 the pool, where its size is given; layers write the pack's rows
    initialize_from_config     the KV cache stands: the pool, where its size is ``auto``
    compile_or_warm_up_model   warm-up and graph capture are over: the manager starts
    execute_model              a boundary before each real step
    an orderly end             the manager stops and saves (vLLM mostly kills: it also saves every minute and when idle)

Nothing of the manager runs while graphs are captured: a capture forbids other threads most of CUDA's calls.
"""

from __future__ import annotations

from multiprocessing.util import Finalize
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.import_utils import resolve_obj_by_qualname

from .. import step_hook, synthetic
from ..cache.key import CacheKey
from ..config import W2Config
from ..placement import LayerPlan
from . import sizing
from .tier import Correction


def build(
    settings: W2Config,
    plan: LayerPlan,
    key: CacheKey,
    device: torch.device,
    vllm_config: VllmConfig,
    experts: synthetic.Experts | None = None,
) -> Correction | None:
    """Make and attach the tier, or None where the settings want none.

    Args:
        settings: what is wanted.
        plan: which layers may be corrected.
        key: what rows depend on.
        device: where the pool lies.
        vllm_config: names the worker's class.
        experts: what rows are computed from where there is no checkpoint, else None.

    Raises:
        UnsupportedError: tensor parallelism, or a vLLM that is not the pinned one.
        CacheError, OSError: the pack cannot be opened.
    """
    if settings.store_dir is None or not (settings.delta_gib or settings.delta_auto):
        return None
    row_bytes = key.geometry.correction_row_bytes
    slots = None if settings.delta_auto else int(settings.delta_gib * 2**30) // row_bytes
    policy, prefill, trace = settings.delta_policy, settings.prefill_fp4, settings.trace
    pack = None if experts is None else synthetic.Rows(settings.store_dir, key, experts)
    made = Correction(plan, key, settings.store_dir, slots, policy, prefill, device, trace, pack)
    _attach(made, device, vllm_config)
    return made


def _attach(made: Correction, device: torch.device, vllm_config: VllmConfig) -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    worker_class = resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls)

    def kv_cache_stands(worker: Any) -> None:
        made.size(sizing.slots(worker, device, made.pack.row_bytes, made.most_slots))

    if made.sized_late:
        step_hook.after(worker_class, "initialize_from_config", kv_cache_stands)
    step_hook.after(worker_class, "compile_or_warm_up_model", lambda worker: made.start())
    step_hook.attach(GPUModelRunner, made.boundary)
    Finalize(None, made.close, exitpriority=1)
