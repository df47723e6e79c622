"""Capability detection, the widened gates, and what the platform keeps as configured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moet_w2.cpu import capability
from moet_w2.cpu.capability import Capability
from moet_w2.errors import UnsupportedError

pytest.importorskip("vllm")

AVX2 = {"avx2": True}
AVX512 = AVX2 | {"avx512_f": True, "avx512_bw": True, "avx512_vl": True, "avx512_dq": True}
BF16 = AVX512 | {"avx512_bf16": True}
AMX = BF16 | {"amx_tile": True, "amx_bf16": True}


@pytest.mark.parametrize(
    ("supports", "isa"),
    [
        (AVX2, "avx2"),
        (AVX2 | {"avx512_f": True}, "avx2"),
        (AVX512, "avx512"),
        (AVX512 | {"amx_tile": True, "amx_bf16": True}, "avx512"),
        (BF16, "avx512_bf16"),
        (BF16 | {"amx_tile": True}, "avx512_bf16"),
        (AMX, "amx"),
    ],
)
def test_detection(supports: dict[str, bool], isa: str) -> None:
    assert capability.detect(None, supports) == Capability(isa, isa)


def test_limit_lowers_and_never_raises() -> None:
    assert capability.detect("avx512", AMX) == Capability("avx512", "amx")
    assert capability.detect("amx", AVX2) == Capability("avx2", "avx2")
    assert not capability.detect("amx", AVX2).is_limited


def test_bad_limit_and_old_processor_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'sse' is not known; use one of avx2, avx512, avx512_bf16, amx"):
        capability.detect("sse", AMX)
    with pytest.raises(UnsupportedError, match="no AVX2"):
        capability.detect(None, {"avx": True})


@pytest.mark.parametrize(
    ("isa", "amx", "bf16", "avx512"),
    [("avx2", False, False, False), ("avx512", False, False, True), ("avx512_bf16", False, True, True)],
)
def test_imposed_limit_answers_for_the_lesser_processor(
    isa: str, amx: bool, bf16: bool, avx512: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "_is_amx_tile_supported",
        "_is_amx_fp16_supported",
        "_is_avx512_bf16_supported",
        "_is_avx512_supported",
    ):
        monkeypatch.setattr(torch.cpu, name, lambda: True)
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.setenv(name, "kept")
        monkeypatch.delenv(name)
    capability.impose(Capability(isa, "amx"))
    assert torch.cpu._is_amx_tile_supported() is amx
    assert torch.cpu._is_avx512_bf16_supported() is bf16
    assert torch.cpu._is_avx512_supported() is avx512
    import os

    assert "ONEDNN_MAX_CPU_ISA" in os.environ
    assert ("ATEN_CPU_CAPABILITY" in os.environ) is (isa == "avx2")


def test_no_limit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.cpu._is_amx_tile_supported
    capability.impose(Capability("amx", "amx"))
    assert torch.cpu._is_amx_tile_supported is before


class FakePlatform:
    """A CPU platform as vLLM has it where AMX is missing: it turns both features off for MLA models."""

    kernels: list[str] = []

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        vllm_config.scheduler_config.enable_chunked_prefill = False
        vllm_config.cache_config.enable_prefix_caching = False
        vllm_config.scheduler_config.max_num_batched_tokens = 65536

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        cls.kernels.append("upstream")


def config_for(model_type: str) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type)),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=1024),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
    )


def fresh_platform() -> Any:
    return type("Platform", (FakePlatform,), {"kernels": []})


@pytest.mark.parametrize(("model_type", "kept"), [("deepseek_v4", True), ("deepseek_v3", False)])
def test_platform_keeps_scheduling_for_this_model_alone(
    model_type: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moet_w2.cpu import platform

    monkeypatch.setattr(capability, "loaded_for", lambda found: True)
    fake, config = fresh_platform(), config_for(model_type)
    platform.attach(fake, Capability("avx2", "avx2"))
    platform.attach(fake, Capability("avx2", "avx2"))
    fake.check_and_update_config(config)
    assert config.scheduler_config.enable_chunked_prefill is kept
    assert config.cache_config.enable_prefix_caching is kept
    assert config.scheduler_config.max_num_batched_tokens == (1024 if kept else 65536)


def test_platform_of_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from moet_w2.cpu import platform

    monkeypatch.setattr(capability, "loaded_for", lambda found: True)
    with pytest.raises(UnsupportedError, match="check_and_update_config is not a class method"):
        platform.attach(type("Platform", (), {}), Capability("avx2", "avx2"))


def test_wrong_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from moet_w2.cpu import platform

    monkeypatch.setattr(capability, "has_op", lambda name: True)
    with pytest.raises(UnsupportedError, match="loaded its C extension for another instruction set than avx2"):
        platform.attach(fresh_platform(), Capability("avx2", "amx"))


def fp8_weight(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    exponents = torch.randint(-4, 4, (rows // 128, columns // 128), generator=generator)
    return weight, torch.exp2(exponents.float())


@pytest.mark.parametrize("kind", [torch.float32, torch.float8_e8m0fnu, torch.uint8])
def test_dequantised_weight_is_exact(kind: torch.dtype) -> None:
    from moet_w2.cpu.linear import dequantise

    weight, scale = fp8_weight(256, 384)
    stored = scale if kind == torch.float32 else scale.to(torch.float8_e8m0fnu)
    stored = stored.view(torch.uint8) if kind == torch.uint8 else stored
    got = dequantise(weight, stored, (128, 128))
    for row, column in ((0, 0), (127, 128), (128, 127), (255, 383)):
        assert got[row, column] == weight[row, column].float() * scale[row // 128, column // 128]


def block_config() -> Any:
    from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import FP8ScaledMMLinearLayerConfig
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        kFp8Dynamic128Sym,
        kFp8Static128BlockSym,
    )

    return FP8ScaledMMLinearLayerConfig(
        weight_quant_key=kFp8Static128BlockSym,
        activation_quant_key=kFp8Dynamic128Sym,
        input_dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
        weight_shape=(256, 384),
    )


def fp8_layer() -> torch.nn.Module:
    weight, scale = fp8_weight(256, 384)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.weight_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
    return layer


@pytest.fixture
def vllm_config() -> Any:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("bias", [False, True])
def test_dequantised_kernel_against_float64(bias: bool, vllm_config: Any) -> None:
    """One BF16 rounding of the result, no rounding of weights or products: within 2**-8 of each value."""
    from moet_w2.cpu.linear import DequantisedFp8BlockKernel, dequantise

    layer = fp8_layer()
    weight = dequantise(layer.weight.data, layer.weight_scale_inv.data, (128, 128)).double()
    kernel = DequantisedFp8BlockKernel(block_config())
    kernel.process_weights_after_loading(layer)
    x = torch.randn(2, 3, 384, generator=torch.Generator().manual_seed(4)).bfloat16()
    offset = torch.arange(256).bfloat16() if bias else None
    got = kernel.apply_weights(layer, x, offset)
    want = x.double() @ weight.t() + (0 if offset is None else offset.double())
    assert got.dtype == torch.bfloat16 and got.shape == (2, 3, 256)
    assert ((got.double() - want).abs() <= want.abs() * 2**-8 + 1e-3).all()


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="needs AVX512-BF16 for the compiled kernel")
@pytest.mark.parametrize("tokens", [1, 3, 200])
def test_compiled_kernel_is_right_without_amx_tiles(tokens: int, vllm_config: Any) -> None:
    """What the widened gate lets through: within 1% of the largest value, weights and inputs being BF16 there."""
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel

    from moet_w2.cpu.linear import dequantise

    layer = fp8_layer()
    weight = dequantise(layer.weight.data, layer.weight_scale_inv.data, (128, 128)).double()
    kernel = CPUFp8BlockScaledMMKernel(block_config())
    kernel.process_weights_after_loading(layer)
    x = torch.randn(tokens, 384, generator=torch.Generator().manual_seed(4)).bfloat16()
    want = x.double() @ weight.t()
    assert (kernel.apply_weights(layer, x).double() - want).abs().max() <= 0.01 * want.abs().max()


@pytest.mark.parametrize("isa", capability.ISAS)
def test_kernel_choice_by_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import _custom_ops
    from vllm.model_executor.kernels import linear as vllm_linear
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsMxfp4
    from vllm.platforms import PlatformEnum

    from moet_w2.cpu import linear, moe

    kernels = vllm_linear._POSSIBLE_FP8_BLOCK_KERNELS
    monkeypatch.setitem(kernels, PlatformEnum.CPU, list(kernels[PlatformEnum.CPU]))
    gate = vars(CPUFp8BlockScaledMMKernel)["is_supported"]
    monkeypatch.setattr(CPUFp8BlockScaledMMKernel, "is_supported", gate)
    monkeypatch.setattr(CPUExpertsMxfp4, "_supports_current_device", vars(CPUExpertsMxfp4)["_supports_current_device"])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: isa == "amx")
    # The build that vLLM loads here may lack the operation; the choice is asked of one that has it.
    monkeypatch.setattr(capability, "has_op", lambda name: True)
    monkeypatch.setattr(_custom_ops, "_supports_cpu_fp8_w8a16", True)
    found = Capability(isa, isa)
    for _ in range(2):
        linear.attach(found)
        moe.attach(found)
    chosen = next(k for k in kernels[PlatformEnum.CPU] if k.is_supported()[0])
    expected = linear.DequantisedFp8BlockKernel if isa in ("avx2", "avx512") else CPUFp8BlockScaledMMKernel
    assert chosen is expected
    assert kernels[PlatformEnum.CPU].count(linear.DequantisedFp8BlockKernel) == (isa in ("avx2", "avx512"))
    assert CPUExpertsMxfp4._supports_current_device()


def test_gates_refuse_a_missing_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    from moet_w2.cpu import linear, moe

    monkeypatch.setattr(capability, "has_op", lambda name: False)
    assert not moe._supported()
    assert linear._compiled_is_supported(object) == (False, "the operation fp8_scaled_mm_cpu is not compiled")
