"""vLLM's own MXFP4 experts, stand-alone, over the same calls as ours.

The layer is made as vLLM's model makes it: its factory, its DeepSeek-V4 quantization config, its choice of backend.
Needs an installed vLLM; everything of it is imported here and nowhere else in the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moet_w2.geometry import SCALE_BLOCK, LayerGeometry

from . import timing, workload

BACKENDS = ("auto", "marlin", "humming", "triton", "triton_unfused", "flashinfer_cutlass")
"""Names of vLLM's ``--moe-backend`` that may run MXFP4 weights on Hopper; ``auto`` is vLLM's own choice."""


def compare(tokens: tuple[int, ...], backends: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Measure each backend in a process of its own, so that one that fails or hangs costs the others nothing.

    Args:
        tokens: token counts.
        backends: names, see :data:`BACKENDS`.
        seconds: most that one backend may take, compilation included.

    Returns:
        for each backend its record, or ``{"error": why}``.
    """
    found: dict[str, Any] = {}
    for backend in backends:
        if backend == found.get("auto", {}).get("backend", "").lower():
            continue  # measured already, as vLLM's own choice
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "stock.json"
            command = [sys.executable, sys.argv[0], "stock", "--backend", backend, "--out", str(out)]
            command += ["--tokens", ",".join(map(str, tokens))]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
                found[backend] = json.loads(out.read_text()) if done.returncode == 0 else {"error": _last(done.stderr)}
            except subprocess.TimeoutExpired:
                found[backend] = {"error": f"took longer than {seconds:.0f} seconds"}
        found[backend].pop("provenance", None)
        print(f"stock {backend}: {found[backend].get('error') or found[backend]['microseconds']}", flush=True)
    return found


def fastest(found: dict[str, Any], tokens: int) -> tuple[str, float] | None:
    """The backend that was fastest at a token count and its microseconds, or None where none ran."""
    times = {name: one["microseconds"].get(str(tokens)) for name, one in found.items() if "error" not in one}
    times = {name: spent for name, spent in times.items() if spent is not None}
    best = min(times, key=lambda name: times[name], default=None)
    return None if best is None else (best, times[best])


def ratios(records: list[dict[str, Any]], found: dict[str, Any]) -> dict[str, Any]:
    """Our time from planes beside the fastest stock backend's, at each token count that both have."""
    compared = {}
    for one in records:
        best = fastest(found, one["tokens"])
        if one["tier"] == "base" and best is not None:
            backend, spent = best
            ratio = spent / one["microseconds"]["chain"]
            compared[str(one["tokens"])] = {"backend": backend, "microseconds": spent, "ratio": ratio}
    return compared


def measure(backend: str, tokens: tuple[int, ...], repeats: int = 20) -> dict[str, Any]:
    """Microseconds of one call at each token count, with a backend of vLLM's."""
    with context(backend):
        layers = [make(workload.LAYER, seed) for seed in range(workload.LAYERS)]
        method = layers[0].quant_method
        if method.is_monolithic:
            raise RuntimeError(f"{method.experts_cls.__name__} routes by itself and takes no ids")
        spent = {}
        for count in tokens:
            numbers = range(workload.calls(min(count * workload.TOP_K, workload.LAYER.experts) * (12 << 20)))
            works = []
            for number in numbers:
                layer, (x, weights, ids) = layers[number % len(layers)], workload.batch(count, number, "cuda")
                works.append(partial(apply, layer, x, weights, ids))
            graph = timing.graph_of(works)
            out = works[0]()
            if not out.isfinite().all() or not out.count_nonzero():
                raise RuntimeError(f"{method.experts_cls.__name__} gave no usable output at {count} tokens")
            spent[str(count)] = timing.microseconds({"stock": (graph, len(works))}, repeats)["stock"]
        return {
            "backend": method.mxfp4_backend.value,
            "experts": method.experts_cls.__name__,
            "microseconds": spent,
        }


def apply(layer: Any, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Routed experts of vLLM's layer, as its runner calls them."""
    return layer.forward_modular(x, weights, ids)


def make(geometry: LayerGeometry, seed: int, device: str = "cuda") -> Any:
    """vLLM's layer of routed experts with random MXFP4 weights, ready to run."""
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = get_quantization_config("deepseek_v4_fp8")(
        is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[128, 128]
    )
    with torch.device(device):
        runner = FusedMoEFactory(
            num_experts=geometry.experts,
            top_k=workload.TOP_K,
            hidden_size=geometry.hidden,
            intermediate_size=geometry.width,
            params_dtype=torch.bfloat16,
            quant_config=config,
            scoring_func="sqrtsoftplus",
            renormalize=True,
            routed_scaling_factor=1.5,
            swiglu_limit=workload.LIMIT,
            prefix=f"model.layers.{seed}.ffn.experts",
        )
    layer = runner.routed_experts
    made = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in layer.named_parameters():
        low, high = workload.SCALE_BYTES if name.endswith("scale") else (0, 256)
        parameter.data.random_(low, high, generator=made)
    _check_shapes(layer, geometry)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def _check_shapes(layer: Any, geometry: LayerGeometry) -> None:
    """That the layer holds the weights we think it does, so that rates compare like with like."""
    experts, hidden, width = geometry.experts, geometry.hidden, geometry.width
    expected = {
        "w13_weight": (experts, 2 * width, hidden // 2),
        "w13_weight_scale": (experts, 2 * width, hidden // SCALE_BLOCK),
        "w2_weight": (experts, hidden, width // 2),
        "w2_weight_scale": (experts, hidden, width // SCALE_BLOCK),
    }
    found = {name: tuple(getattr(layer, name).shape) for name in expected}
    if found != expected:
        raise RuntimeError(f"vLLM's layer holds {found}, expected {expected}")


class context:
    """vLLM's configuration and one-rank process groups around the making and running of a layer."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        from vllm import _custom_ops  # noqa: F401  (registers vLLM's operators)
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.forward_context import set_forward_context
        from vllm.v1.worker.workspace import init_workspace_manager

        config = VllmConfig()
        config.kernel_config.moe_backend = self._backend
        self._inner = [set_current_vllm_config(config), set_forward_context(None, config)]
        self._inner[0].__enter__()
        address = f"file://{tempfile.mkdtemp()}/group"
        kind = "nccl" if torch.cuda.is_available() else "gloo"
        init_distributed_environment(1, 0, address, 0, kind)
        initialize_model_parallel(1, 1)
        self._inner[1].__enter__()
        if torch.cuda.is_available():
            init_workspace_manager(torch.device("cuda"))

    def __exit__(self, *error: Any) -> None:
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        for one in reversed(self._inner):
            one.__exit__(*error)
        destroy_model_parallel()
        destroy_distributed_environment()


def _last(text: str) -> str:
    """The last lines of a failed process that say why."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or f"ended without a message (cwd {os.path.basename(os.getcwd())})"
