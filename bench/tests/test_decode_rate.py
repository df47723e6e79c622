import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import decode_rate
import gpu_site
from decode_rate import Side

from moet_w2 import checkpoint, reference, synthetic
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import W2Layer
from moet_w2.placement import Placement


def test_the_model_has_real_layers_and_no_weights(tmp_path: Path) -> None:
    decode_rate.write_model(tmp_path, 8)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    report = checkpoint.describe(tmp_path)
    assert (report.target_layers, report.geometry) == (8, LayerGeometry(256, 4096, 2048))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["compress_ratios"] == [0, 0, 4, 128, 4, 128, 4, 128]


def test_real_widths_are_those_that_vllms_own_configuration_defaults_to(tmp_path: Path) -> None:
    from transformers import AutoConfig
    from transformers.models.deepseek_v4 import DeepseekV4Config

    decode_rate.write_model(tmp_path, 8)
    ours, flash = AutoConfig.from_pretrained(tmp_path), DeepseekV4Config()
    for name in set(decode_rate.REAL) - {"num_hash_layers", "rope_scaling"} | {"head_dim", "index_topk", "hc_mult"}:
        assert getattr(ours, name) == getattr(flash, name), name
    assert ours.mlp_layer_types == flash.mlp_layer_types[:8]
    assert len(ours.layer_types) == 8


def test_each_side_gets_its_own_environment(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_MOE_W2_DELTA_GB", "6")
    stock, ours = (decode_rate.environment(8, Side(experts, 2)) for experts in ("stock", "ours"))
    assert stock["VLLM_MOE_W2"] == "0" and "VLLM_MOE_W2_MAPPED_LAYERS" not in stock
    assert ours["VLLM_MOE_W2_MAPPED_LAYERS"] == "6,7" and "VLLM_MOE_W2" not in ours
    assert "VLLM_MOE_W2_DELTA_GB" not in stock | ours
    assert stock["VLLM_USE_BREAKABLE_CUDAGRAPH"] == ours["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    assert "VLLM_MOE_W2_MAPPED_LAYERS" not in decode_rate.environment(8, Side("ours"))


def test_rates_count_the_tokens_after_the_first() -> None:
    rates = decode_rate.summary(4, [(2.0, 0.5), (1.51, 0.49), (1.5, 0.48)])
    assert rates["seconds"] == 1.51 and rates["first_token_seconds"] == 0.49
    assert rates["decode_tokens_per_s"] == pytest.approx(4 * 255 / 1.02)
    assert rates["step_ms"] == pytest.approx(1.02 / 255 * 1e3)
    assert rates["tokens_per_s"] == pytest.approx(4 * 256 / 1.51)


def test_the_ratio_is_ours_over_stock() -> None:
    names = [side.name for side in decode_rate.sides([0, 2], [2])]
    assert names == ["stock", "stock-2-offloaded", "ours-0-mapped", "ours-2-mapped"]
    assert [Side.of(name).name for name in names] == names
    with pytest.raises(SystemExit, match="theirs: is no side"):
        Side.of("theirs")
    rates = {"stock": (100.0, 50.0), "ours-0-mapped": (150.0, 60.0), "ours-2-mapped": (90.0, 40.0)}
    rates["stock-2-offloaded"] = (30.0, 20.0)
    measured = {
        side: {"requests": {"1": {"decode_tokens_per_s": decode, "tokens_per_s": whole}}}
        for side, (decode, whole) in rates.items()
    }
    assert decode_rate.compare(measured) == {
        "ours-0-mapped": {"1": {"decode_tokens_per_s": 1.5, "tokens_per_s": 1.2}},
        "ours-2-mapped": {"1": {"decode_tokens_per_s": 0.9, "tokens_per_s": 0.8}},
    }
    assert decode_rate.compare_in_host(measured) == {
        "ours-2-mapped": {"1": {"decode_tokens_per_s": 3.0, "tokens_per_s": 2.0}}
    }


def test_a_side_with_experts_in_host_memory_asks_for_just_their_bytes(tmp_path: Path) -> None:
    decode_rate.write_model(tmp_path, 8)
    assert Side("ours", 2).host_bytes(tmp_path) == 2 * LayerGeometry(256, 4096, 2048).nbytes
    assert Side("stock", 2).host_bytes(tmp_path) == 2 * 27380416512 // 8  # decode_rate_h200.json: of all eight layers
    assert Side("stock").engine(tmp_path) == {} and Side("ours").engine(tmp_path) == {"quantization": "moet_w2"}
    asked = Side("stock", 2).engine(tmp_path)
    assert int(asked["cpu_offload_gb"] * 1024**3) == Side("stock", 2).host_bytes(tmp_path)
    from vllm.engine.arg_utils import EngineArgs

    assert set(asked) <= set(EngineArgs.__dataclass_fields__)
    assert [decode_rate.group(side) for side in decode_rate.sides([1], [1])] == ["stock", "offloaded", "ours"]


def test_vllms_offload_takes_the_experts_of_the_first_layers_and_nothing_else(monkeypatch) -> None:
    from vllm.model_executor.offloader import uva

    monkeypatch.setattr(uva, "should_pin_memory", lambda: False)
    monkeypatch.setattr(uva, "is_uva_available", lambda: True)
    monkeypatch.setattr(uva, "get_accelerator_view_from_cpu_tensor", lambda tensor: tensor)
    monkeypatch.setattr(uva.torch, "device", lambda name: f"no {name}")  # else what lies on the CPU stays as it is
    shapes = {"w13_weight": (4, 8), "w13_weight_scale": (4, 2), "w2_weight": (4, 4), "w2_weight_scale": (4, 1)}

    def layer() -> torch.nn.Module:
        made = torch.nn.Module()
        made.attn = torch.nn.Linear(2, 2)
        made.experts = type("RoutedExperts", (torch.nn.Module,), {})()
        for name, shape in shapes.items():
            made.experts.register_parameter(name, torch.nn.Parameter(torch.ones(shape)))
        return made

    one = 4 * sum(rows * columns for rows, columns in shapes.values())
    offloader = uva.UVAOffloader(2 * one, set(decode_rate.EXPERT_PARAMETERS))
    monkeypatch.setattr(torch.nn.Parameter, "device", SimpleNamespace(type="cuda"), raising=False)
    layers = offloader.wrap_modules(layer() for _ in range(3))
    marked = [
        [name for name, each in made.named_parameters() if getattr(each, "_vllm_is_uva_offloaded", False)]
        for made in layers
    ]
    assert marked == [[f"experts.{name}" for name in shapes]] * 2 + [[]] and offloader.cpu_offload_bytes == 2 * one


def test_what_lies_in_host_memory_is_asked_of_the_driver(monkeypatch) -> None:
    model = torch.nn.ModuleList([type("RoutedExperts", (torch.nn.Module,), {})() for _ in range(2)])
    model[0].w2 = SimpleNamespace(storage=torch.zeros(64, dtype=torch.uint8))
    for name in (*decode_rate.EXPERT_PARAMETERS, "w2_bias"):
        model[1].register_parameter(name, torch.nn.Parameter(torch.zeros(4)))
    memory = decode_rate.expert_memory(model)
    assert [nbytes for _, nbytes in memory] == [64, 16, 16, 16, 16]
    host = {memory[0][0], memory[2][0]}
    kinds = SimpleNamespace(cudaMemoryTypeHost=1)
    runtime = SimpleNamespace(
        cudaMemoryType=kinds,
        cudaPointerGetAttributes=lambda address: (0, SimpleNamespace(type=1 if address in host else 2)),
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=SimpleNamespace(runtime=runtime)))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(runtime=runtime))
    assert decode_rate.in_host_memory(model) == 64 + 16


def test_a_side_whose_experts_lie_elsewhere_ends_the_run(tmp_path: Path, monkeypatch) -> None:
    decode_rate.write_model(tmp_path, 8)

    class Engine:
        def __init__(self, *args, **options) -> None:
            return None

        def apply_model(self, function) -> list:
            return [0]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=None))
    with pytest.raises(
        SystemExit, match="stock-4-offloaded: 0 bytes of experts lie in host memory, not 13,690,208,256"
    ):
        decode_rate.measure(str(tmp_path), Side("stock", 4), [1], 1, {})


def test_stock_weights_become_random_with_small_scales() -> None:
    experts = type("RoutedExperts", (torch.nn.Module,), {})()
    for name, tensor in {
        "w13_weight": torch.zeros(64, 64, dtype=torch.uint8),
        "w13_weight_scale": torch.zeros(64, 8, dtype=torch.int32),
        "w2_weight_scale": torch.zeros(64, 8),
        "w2_bias": torch.zeros(64),
        "e_score_correction_bias": torch.zeros(64),
    }.items():
        experts.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    filled = decode_rate.randomise(torch.nn.Sequential(experts, torch.nn.Linear(2, 2)))
    assert filled == 64 * 64 + 64 * 8 * 4 * 2
    assert len(experts.w13_weight.unique()) > 200
    assert experts.w13_weight_scale.view(torch.uint8).unique().tolist() == [121]
    assert experts.w2_weight_scale.unique().tolist() == [2.0**-6]
    experts.quant_method = SimpleNamespace(mxfp4_backend=SimpleNamespace(name="MARLIN"))
    assert decode_rate.backend(torch.nn.Sequential(experts)) == "MARLIN"
    assert not experts.w2_bias.any() and not experts.e_score_correction_bias.any()


def test_a_wrong_layer_is_seen() -> None:
    geometry = LayerGeometry(8, 256, 128)

    class Method:
        factor = 1.0

        def apply(self, layer, x, weights, ids, *_):
            return self.factor * reference.moe(layer.w2, x, weights, ids, layer.swiglu_limit)

    model = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Linear(2, 2), torch.nn.Module()])
    for key, number in ((0, 0), (1, 2)):
        layer = model[number]
        layer.w2 = W2Layer(key, geometry, Placement.DEVICE, torch.empty(geometry.nbytes, dtype=torch.uint8))
        layer.top_k, layer.swiglu_limit, layer.quant_method = 6, 10.0, Method()
        synthetic.Experts(0, geometry, torch.device("cpu")).fill(layer.w2)
    assert decode_rate.verify(model) == 0.0
    model[2].quant_method.factor = 1.02
    assert decode_rate.verify(model) == pytest.approx(0.02, abs=0.005) and 0.02 > decode_rate.TOLERANCE


def test_a_side_that_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "stock.json").write_text('{"requests": {}}')
    monkeypatch.setattr(decode_rate, "WORK", tmp_path)
    monkeypatch.setattr(decode_rate.subprocess, "run", lambda *_, **__: pytest.fail("ran again"))
    assert decode_rate.run(Side("stock"), None) == {"requests": {}}


def test_sides_that_were_measured_with_other_options_are_not_mixed_in(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(decode_rate, "WORK", tmp_path / "new")
    decode_rate.hold_options(8, [1, 4], 5)
    decode_rate.hold_options(8, [1, 4], 5)
    with pytest.raises(SystemExit, match="holds sides measured with .*'layers': 8.*; remove it"):
        decode_rate.hold_options(4, [1, 4], 5)


def test_the_site_folder_is_an_installed_package(tmp_path: Path) -> None:
    site = gpu_site.make(tmp_path / "site")
    assert gpu_site.make(tmp_path / "site") == site  # again, over the old one
    code = (
        "from importlib.metadata import distribution as d, entry_points\n"
        f"import sys; assert d('moet-w2').version and str(d('moet-w2')._path).startswith({str(site)!r})\n"
        "import moet_w2; print(moet_w2.__file__)\n"
        "print(*[e.load().__name__ for e in entry_points(group='vllm.general_plugins') if e.name == 'moet_w2'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0].startswith(str(site)) and done.stdout.split()[1] == "register"
