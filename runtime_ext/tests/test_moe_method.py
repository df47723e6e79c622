"""The border to vLLM: attachment, the checkpoint's takeover, streaming through vLLM's own loader signature."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from generators import TINY, expert_tensors, filled_layer

from moet_w2 import checkpoint, config, moe_method, plugin, reference, runtime, synthetic
from moet_w2.audit import Audit
from moet_w2.errors import CheckpointError, ConfigError, HostMemoryError, UnsupportedError
from moet_w2.kernels import experts
from moet_w2.layer import Shard
from moet_w2.placement import plan
from moet_w2.runtime import W2Runtime

MXFP4 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.fixture(scope="module")
def quantization():
    plugin.register()
    from moet_w2 import quantization

    return quantization


def test_importing_the_plugin_imports_neither_torch_nor_vllm() -> None:
    code = "import sys, moet_w2.plugin; print(sorted({'torch', 'vllm', 'triton'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_registering_twice_is_harmless(quantization) -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    plugin.register()
    assert get_quantization_config("moet_w2") is quantization.MoetW2Config
    assert issubclass(quantization.MoetW2Config, get_quantization_config("deepseek_v4_fp8"))


def test_vllm_takes_our_settings_for_known_and_others_still_not(quantization, monkeypatch) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "1")
    current_platform.validate_environ(hard_fail=True)
    monkeypatch.setenv("VLLM_MOE_W2_MAPED_LAYERS", "1")
    with pytest.raises(ValueError, match="VLLM_MOE_W2_MAPED_LAYERS"):
        current_platform.validate_environ(hard_fail=True)


def test_an_unknown_setting_stops_every_vllm_process(monkeypatch, quantization) -> None:
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setenv("VLLM_MOE_W2_MAPED_LAYERS", "3")
    with pytest.raises(ConfigError, match="did you mean VLLM_MOE_W2_MAPPED_LAYERS"):
        plugin.register()


def test_an_attachment_that_does_not_hold_raises(monkeypatch, quantization) -> None:
    from vllm.model_executor.layers import quantization as vllm_quantization

    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(vllm_quantization, "register_quantization_config", lambda name: lambda cls: cls)
    monkeypatch.setattr(vllm_quantization, "get_quantization_config", lambda name: None)
    with pytest.raises(UnsupportedError, match="did not take the quantization method"):
        plugin.register()


def override(quantization, user: str | None, checkpoint: dict = MXFP4, **hf) -> str | None:
    hf_config = SimpleNamespace(**({"model_type": "deepseek_v4"} | hf))
    return quantization.MoetW2Config.override_quantization_method(checkpoint, user, hf_config=hf_config)


def test_takeover_is_the_users_choice_only(quantization, monkeypatch) -> None:
    assert override(quantization, "moet_w2") == "moet_w2"
    assert override(quantization, "moet_w2", model_type="deepseek_mtp") == "moet_w2"
    assert override(quantization, None) is None
    assert override(quantization, "deepseek_v4_fp8") is None
    monkeypatch.setenv("VLLM_MOE_W2", "0")
    assert override(quantization, "moet_w2") == "deepseek_v4_fp8"


@pytest.mark.parametrize(
    ("checkpoint", "hf", "error", "named"),
    [
        (MXFP4, {"model_type": "qwen3_moe"}, UnsupportedError, "not 'qwen3_moe'"),
        (MXFP4, {"expert_dtype": "fp8"}, CheckpointError, "expert_dtype 'fp8'"),
        ({"quant_method": "awq"}, {}, CheckpointError, "quant_method 'awq'"),
    ],
)
def test_takeover_refuses_what_it_cannot_serve(quantization, checkpoint, hf, error, named) -> None:
    with pytest.raises(error, match=named):
        override(quantization, "moet_w2", checkpoint, **hf)


class Experts(torch.nn.Module):
    """What the method needs of vLLM's RoutedExperts."""

    layer_name = "model.layers.1.ffn.experts"
    global_num_experts = TINY.experts
    apply_router_weight_on_input = False
    swiglu_limit = 10.0


@pytest.fixture
def process(monkeypatch) -> W2Runtime:
    layers = plan(config.W2Config(), 2)
    audit = Audit(None, layers, {"type": "cpu", "name": "test", "pci": None, "numa": None})
    made = W2Runtime(layers, torch.device("cpu"), None, audit)
    monkeypatch.setattr(runtime, "get", lambda: made)
    return made


@pytest.fixture
def method() -> moe_method.W2MoEMethod:
    parallel = SimpleNamespace(tp_rank=0, tp_size=1)
    return moe_method.W2MoEMethod(SimpleNamespace(moe_parallel_config=parallel))


def created(method, layer: Experts) -> Experts:
    method.create_weights(layer, TINY.experts, TINY.hidden, TINY.width, torch.bfloat16)
    return layer


def stream(layer: Experts, tensors) -> None:
    """Call the parameters' loaders the way vLLM's model does."""
    names = {("w1", "weight"): "w13_weight", ("w3", "weight"): "w13_weight", ("w2", "weight"): "w2_weight"}
    parameters = dict(layer.named_parameters())
    for (expert, projection, kind), tensor in tensors.items():
        name = names[projection, "weight"] + ("_scale" if kind == "scale" else "")
        tensor = tensor.view(torch.uint8) if kind == "scale" else tensor
        param = parameters[name]
        assert param.weight_loader(param, tensor, name, shard_id=projection, expert_id=expert, return_success=True)


def test_streamed_tensors_are_served(process, method) -> None:
    layer = created(method, Experts())
    expected, tensors = filled_layer(TINY)
    stream(layer, tensors)
    method.process_weights_after_loading(layer)
    assert torch.equal(layer.w2.storage, expected.storage)
    x, ids, weights = torch.randn(3, TINY.hidden), torch.tensor([[0, 1], [2, 3], [3, 0]]), torch.rand(3, 2)
    out = method.apply(layer, x, weights, ids, None, None)
    assert torch.equal(out, reference.moe(expected, x, weights, ids, 10.0))
    assert process.reads is None and layer.w2.reads is None
    layer.w2.reads = torch.zeros(2, dtype=torch.int64)  # as a mapped layer's
    method.apply(layer, x, weights, ids, None, None)
    assert layer.w2.reads.tolist() == [4, 0]
    assert process.audit.document()["layers"][0]["first_dispatch_unix"]


def test_the_module_holds_no_second_copy_and_would_be_caught_with_one(process, method) -> None:
    layer = created(method, Experts())
    stream(layer, expert_tensors(TINY))
    assert sum(p.numel() for p in layer.parameters()) == 0
    assert moe_method.redundant_bytes(layer, layer.w2) == 0
    layer.e_score_correction_bias = torch.nn.Parameter(torch.zeros(TINY.experts))  # the router's, no weight
    assert moe_method.redundant_bytes(layer, layer.w2) == 0
    layer.leftover = layer.w2.storage.clone()
    assert moe_method.redundant_bytes(layer, layer.w2) == TINY.nbytes


def test_incomplete_layers_never_serve(process, method) -> None:
    layer = created(method, Experts())
    tensors = expert_tensors(TINY)
    del tensors[3, "w1", "scale"]
    stream(layer, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.1\.ffn\.experts\.3\.w1\.scale: never arrived \(1 expert"):
        method.process_weights_after_loading(layer)


def test_a_float_scale_is_refused_on_its_way_in(process, method) -> None:
    layer = created(method, Experts())
    param = dict(layer.named_parameters())["w2_weight_scale"]
    with pytest.raises(CheckpointError, match=r"layers\.1\.ffn\.experts\.0\.w2\.scale: float32"):
        param.weight_loader(param, torch.ones(256, 4), "w2_weight_scale", shard_id="w2", expert_id=0)


def test_one_layer_is_built_once(process, method) -> None:
    created(method, Experts())
    with pytest.raises(UnsupportedError, match="layer 1 is built twice"):
        created(method, Experts())


def test_a_share_of_the_experts_is_refused(process, method) -> None:
    layer = Experts()
    layer.global_num_experts = 8
    with pytest.raises(UnsupportedError, match="4 of 8 experts"):
        created(method, layer)


def test_mapped_layers_lie_in_locked_memory(fresh_runtime, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "1")
    made = fresh_runtime()
    layers = [made.create_layer(key, TINY, Shard()) for key in (0, 1)]
    assert layers[0].host is None and layers[0].reads is None
    assert layers[1].host is not None and layers[1].storage.data_ptr() == layers[1].host.address
    assert layers[1].reads.data_ptr() == made.reads.counts.data_ptr()
    layers[1].close()


@pytest.mark.parametrize("load_format", synthetic.LOAD_FORMATS)
def test_computed_weights_need_no_checkpoint_and_say_what_they_are(
    fresh_runtime, method, load_format, tmp_path: Path, caplog
) -> None:
    for file in [*(tmp_path / "model").glob("*.safetensors"), tmp_path / "model" / checkpoint.INDEX]:
        file.unlink()
    made = fresh_runtime(load_format=load_format)
    assert "for benchmarks only; every answer is noise" in caplog.text
    layer = created(method, Experts())
    layer.w2.storage.fill_(0xA5)
    method.process_weights_after_loading(layer)
    assert made.audit.document()["layers"][0]["origin"] == synthetic.ORIGIN
    for part in ("planes13", "planes2"):
        assert torch.bincount(layer.w2.view(part).flatten().int(), minlength=256).min() > 0
    x = torch.randn(4, TINY.hidden)
    out = method.apply(layer, x, torch.ones(4, 2), torch.tensor([[0, 1], [2, 3], [3, 0], [1, 2]]), None, None)
    assert torch.isfinite(out).all() and out.any()


@pytest.fixture
def on_gpu(process, method, monkeypatch):
    """A call of a layer that says its bytes are on a GPU: what it hands to the operator, by name."""
    calls = []

    def operator(*args):
        calls.append(inspect.signature(experts.experts).bind(*args).arguments)
        return args[0]

    monkeypatch.setattr(torch.ops.moet_w2, "experts", operator)
    layer, storage = Experts(), SimpleNamespace(device=torch.device("cuda", 0))
    layer.w2 = SimpleNamespace(key=1, geometry=TINY, storage=storage, dispatched=True, reads=None)

    def call(tokens: int = 3, reads: torch.Tensor | None = None) -> dict:
        layer.w2.reads = reads
        x = torch.zeros(tokens, TINY.hidden, dtype=torch.bfloat16)
        ids, weights = torch.zeros(tokens, 2, dtype=torch.int32), torch.zeros(tokens, 2)
        assert method.apply(layer, x, weights, ids, None, None) is x
        passed = (calls[-1][name] for name in ("x", "topk_weights", "topk_ids", "storage"))
        assert all(one is other for one, other in zip(passed, (x, weights, ids, storage), strict=True))
        return calls[-1]

    return call


def test_a_gpu_computes_by_the_operator(on_gpu) -> None:
    given = on_gpu()
    assert (given["experts"], given["width"], given["limit"]) == (TINY.experts, TINY.width, 10.0)
    assert [given[name] for name in ("rows", "slots", "counts", "padding", "reads")] == [None] * 5
    reads = torch.zeros(2, dtype=torch.int64)
    assert on_gpu(reads=reads)["reads"] is reads


def test_a_gpu_gets_slots_and_counters_of_the_correction(on_gpu, process) -> None:
    asked = []
    views = {1: ("rows", "slots", "counts"), 70: (None, None, "counts"), 5: None}
    process.correction = SimpleNamespace(device_views=lambda key, tokens: asked.append((key, tokens)) or views[tokens])
    for tokens, expected in views.items():
        given = on_gpu(tokens)
        assert (given["rows"], given["slots"], given["counts"]) == (expected or (None, None, None))
    assert asked == [(1, 1), (1, 70), (1, 5)]


def test_a_gpu_skips_the_rows_that_fill_a_batch_up(on_gpu, monkeypatch) -> None:
    mask = torch.tensor([False] * 6 + [True] * 2)
    monkeypatch.setattr(moe_method, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(moe_method, "get_forward_context", lambda: SimpleNamespace(is_padding=mask))
    assert torch.equal(on_gpu(8)["padding"], mask)
    assert on_gpu(7)["padding"].data_ptr() == mask.data_ptr() and len(on_gpu(7)["padding"]) == 7
    assert on_gpu(9)["padding"] is None  # a mask of another batch
    monkeypatch.setattr(moe_method, "get_forward_context", lambda: SimpleNamespace(is_padding=None))
    assert on_gpu(8)["padding"] is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"v2": False}, "Model Runner V1"),
        ({"enable_expert_parallel": True}, "--enable-expert-parallel"),
        ({"enable_eplb": True}, "--enable-eplb"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
    ],
)
def test_unsupported_combinations_are_refused(fresh_runtime, changes, named) -> None:
    with pytest.raises(UnsupportedError, match=named):
        fresh_runtime(**changes)


def test_a_gpu_guard_without_a_gpu_is_refused(fresh_runtime, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "1")
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_PCI", "31:00.0")
    with pytest.raises(ConfigError, match="MAPPED_PCI=0000:31:00.0: no GPU computes here"):
        fresh_runtime()


def test_too_little_host_memory_stops_before_any_layer_is_built(fresh_runtime, monkeypatch) -> None:
    from moet_w2 import preflight

    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "0,1")
    monkeypatch.setattr(preflight, "limits", lambda *_: [preflight.Available("a test", 1000, "add memory")])
    with pytest.raises(HostMemoryError, match=f"need {2 * TINY.nbytes:,} bytes .* a test leaves 1,000: add memory"):
        fresh_runtime()


def test_layer_keys_are_held_against_the_model(fresh_runtime, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "2")
    with pytest.raises(ConfigError, match=r"layer key 2 is out of range.*0\.\.1 and no draft"):
        fresh_runtime()


def test_a_broken_checkpoint_stops_before_any_layer_is_built(fresh_runtime, tmp_path: Path) -> None:
    (tmp_path / "model" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="00002.safetensors: this shard is missing"):
        fresh_runtime()
