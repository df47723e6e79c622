"""The kernel benchmark's accounting and its tables, with emulated kernels and a clock that says what it is told."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kernel_emulator
from kernel_bench import activations, cases, chain, counters, quick, sass, speed, stock, timing, traffic, workload

import kernels
from moet_w2.geometry import LayerGeometry

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = LayerGeometry(experts=8, hidden=256, width=128)
CASE = cases.Case(0, SMALL, 12, 3, "base", "uniform", 10.0, 0.1)


class FakeReader:
    """Reads nothing; 1,000 GB/s."""

    ceiling = 1000.0
    gb_per_s = {"1 in turn": 900.0, "2 spans": 1000.0}

    def __init__(self, ranges: list[torch.Tensor]) -> None:
        self.ranges = ranges

    def read(self, address: int, nbytes: int) -> timing.Work:
        inside = any(
            one.data_ptr() <= address and address + nbytes <= one.data_ptr() + one.numel() for one in self.ranges
        )
        assert inside and nbytes % 16 == 0 and address % 16 == self.ranges[0].data_ptr() % 16
        return lambda: None

    def checked(self, one: torch.Tensor) -> bool:
        return True


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small layer on the CPU, kernels in torch, and 10 microseconds for everything."""

    def run(works: list[timing.Work]) -> None:
        for work in works:
            work()

    monkeypatch.setattr(chain, "DEVICE", "cpu")
    monkeypatch.setattr(chain.driver, "kernel", lambda source, name, device: kernel_emulator.Emulated(name))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(workload, "LAYER", SMALL)
    monkeypatch.setattr(workload, "LAYERS", 2)
    monkeypatch.setattr(workload, "_ROTATION", 1)
    monkeypatch.setattr(timing, "Reader", FakeReader)
    monkeypatch.setattr(timing, "graph_of", run)
    monkeypatch.setattr(timing, "microseconds", lambda graphs, repeats: dict.fromkeys(graphs, 10.0))


def test_bytes_of_a_call_by_hand() -> None:
    """Two experts of the real layer, one token; the numbers are those of the layer's parts."""
    layer = workload.LAYER
    one = traffic.of_call(layer, torch.tensor([[3, 200, -1]]), fp4=False)
    assert one.experts == 2
    assert one.weights13 == 2 * (4_194_304 + 524_288) and one.weights2 == 2 * (2_097_152 + 262_144)
    assert one.gemm13 == one.weights13 + 4096 * 2 + 2 * 2048 * 2
    assert one.gemm2 == one.weights2 + 2 * 2048 * 2 + 2 * 4096 * 4
    assert one.chain == one.weights13 + one.weights2 + 2 * 4096 * 2
    fp4 = traffic.of_call(layer, torch.tensor([[3, 200, -1]]), fp4=True)
    assert fp4.weights13 + fp4.weights2 == 2 * (12_582_912 + 524_288 + 262_144)


def test_an_expert_counts_once_and_a_row_without_a_route_not_at_all() -> None:
    one = traffic.of_call(SMALL, torch.tensor([[1, 2], [2, 1], [-1, -1]]), fp4=False)
    both = traffic.of_call(SMALL, torch.tensor([[1, 2]]), fp4=False)
    assert one.experts == 2 and one.weights13 == both.weights13
    assert one.gemm13 - both.gemm13 == 256 * 2 + 2 * 128 * 2  # one more row in, two more inner rows out


def test_calls_rotate_far_beyond_any_cache() -> None:
    for tokens in workload.TOKENS:
        experts = len(torch.unique(workload.batch(tokens, 0, "cpu").ids))
        nbytes = experts * workload.LAYER.nbytes // 256
        assert workload.calls(nbytes) >= workload.LAYERS
        assert workload.calls(nbytes) * nbytes / 3 > 8 * (60 << 20), tokens  # of the second GEMM, the smaller


def test_batches_are_reproducible_and_differ() -> None:
    one, again, other = (workload.batch(5, number, "cpu") for number in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one.ids, other.ids)
    assert all(len(set(row)) == 6 for row in one.ids.tolist()) and int(one.ids.max()) < 256


def test_speed_divides_bytes_by_time(no_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    layers = workload.random_layers(2)
    scales = layers[0][SMALL.parts["sc13"].offset :][: SMALL.parts["sc13"].nbytes]
    assert scales.min() >= 110 and scales.max() < 126
    for rows, tier in ((None, "base"), (workload.random_rows(), "fp4")):
        calls = workload.chains(3, layers, rows, count=4)
        assert [one.call.storage is layers[number % 2] for number, one in enumerate(calls)] == [True] * 4
        record = speed.record(calls, layers, FakeReader(layers), repeats=1)
        expected = speed.mean([traffic.of_call(SMALL, one.call.topk_ids, tier == "fp4") for one in calls])
        assert record["tier"] == tier and record["experts"] == expected.experts
        assert record["gb_per_s"]["gemm13"] == pytest.approx(expected.gemm13 / 10e-6 / 1e9)
        assert record["share_of_ceiling"]["gemm2"] == pytest.approx(expected.gemm2 / 10e-6 / 1e12)
        # A read covers a layer at most; the time of a longer one is reckoned from it.
        assert record["share_of_equal_read"]["gemm2"] == max(1, expected.gemm2 / SMALL.nbytes) == 1
        assert record["share_of_equal_read"]["chain"] == max(1, expected.chain / SMALL.nbytes)
        assert all(one.out.isfinite().all() for one in calls)
        speed.print_record(record)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["3", "base"], ["3", "fp4"]]


def test_the_whole_speed_run_is_a_result(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "copy_gb_per_s", lambda source: 4000.0)
    monkeypatch.setattr(speed, "host", lambda layer: {"operator": 1.0})
    result = speed.measure((1, 5), repeats=1)
    assert [(one["tokens"], one["tier"]) for one in result["tokens"]] == [
        (1, "base"),
        (5, "base"),
        (1, "fp4"),
        (5, "fp4"),
    ]
    assert result["read_gb_per_s"]["ceiling"] == 1000 and result["geometry"]["experts"] == 8


def test_the_command_writes_what_it_measured_and_what_was_aimed_at(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels.facts, "_gpu", lambda: "emulated")
    monkeypatch.setattr(timing, "copy_gb_per_s", lambda source: 4000.0)
    monkeypatch.setattr(speed, "host", lambda layer: {"operator": 1.0})
    found = {"auto": {"backend": "HUMMING", "microseconds": {"1": 22.0, "5": 30.0}}}
    monkeypatch.setattr(stock, "compare", lambda tokens, backends, seconds: found)
    out = tmp_path / "speed.json"
    monkeypatch.setattr(sys, "argv", ["bench/kernels.py", "speed", "--tokens", "1,5", "--stock", "--out", str(out)])
    kernels.main()
    result = json.loads(out.read_text())
    assert result["benchmark"] == "kernels speed" and len(result["tokens"]) == 4
    assert result["ratio_to_stock"]["5"]["ratio"] == 3.0 and result["stock"] == found
    assert result["targets"]["times_stock_to_8_tokens"] == {"at_least": 1.6, "reached": 2.2, "met": True}
    printed = capsys.readouterr().out
    assert "5 tokens: 3.00 times stock (auto, 30.0 us)" in printed and "target times_stock_to_8_tokens" in printed


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench/kernels.py", "correctness"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        kernels.main()


def test_a_failed_case_fails_the_command(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cases, "generate", lambda count, seed: [CASE])
    monkeypatch.setattr(sys, "argv", ["bench/kernels.py", "correctness"])
    kernels.main()
    monkeypatch.setattr(quick.correctness, "TOLERANCE", 1e-9)
    with pytest.raises(SystemExit) as ended:
        kernels.main()
    assert ended.value.code == 1


def test_quick_takes_builds_from_folders(tmp_path: Path) -> None:
    built = ("a/decode.cubin", "a/prefill.cubin", "b/cubins/sm_80/decode.cubin", "b/cubins/sm_90a/decode.cubin")
    for name in built:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"")
    assert list(quick.builds(tmp_path, (9, 0))) == ["committed", "a", "b"]
    assert list(quick.builds(tmp_path / "a", (9, 0))) == list(quick.builds(tmp_path, (12, 0))) == ["committed", "a"]
    assert list(quick.builds(tmp_path / "b", (9, 0))) == ["committed", "b"]
    assert list(quick.builds(None, (9, 0))) == ["committed"]
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match="holds no cubin for compute capability"):
        quick.builds(tmp_path / "none", (9, 0))


def test_quick_reports_every_build(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(kernel: str, written: torch.Tensor) -> None:
        if kernel == "moet_combine":
            written[0, 0] = 99.0

    builds = {"committed": chain.committed, "wrong": kernel_emulator.find(spoil)}
    monkeypatch.setattr(quick, "builds", lambda folder, capability: builds)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(cases, "generate", lambda count: [CASE])
    result = quick.measure(None, (1, 5), repeats=1)
    assert [(one["build"], one["tokens"]) for one in result["tokens"]] == [
        (name, tokens) for tokens in (1, 5) for name in builds
    ]
    assert result["failed"] == len(result["failures"]["wrong"]) == 2 and not result["failures"]["committed"]
    assert "wrong: 1 cases, 2 failures" in capsys.readouterr().out


def test_ratios_take_the_fastest_backend_that_ran() -> None:
    found: dict[str, Any] = {
        "auto": {"backend": "HUMMING", "microseconds": {"1": 30.0, "8": 60.0}},
        "marlin": {"backend": "MARLIN", "microseconds": {"1": 24.0, "8": 80.0}},
        "triton": {"error": "no such module"},
    }
    records = [
        {"tokens": tokens, "tier": tier, "microseconds": {"chain": 12.0}}
        for tokens in (1, 8, 16)
        for tier in ("base", "fp4")
    ]
    assert stock.ratios(records, found) == {
        "1": {"backend": "marlin", "microseconds": 24.0, "ratio": 2.0},
        "8": {"backend": "auto", "microseconds": 60.0, "ratio": 5.0},
    }
    assert stock.fastest({"triton": {"error": "x"}}, 1) is None


def test_targets_are_met_by_the_worst_case_alone() -> None:
    shares = {(1, "base"): (0.9, 0.76), (8, "base"): (0.8, 0.8), (16, "base"): (0.1, 0.1), (5, "fp4"): (0.1, 0.1)}
    records = [
        {"tokens": tokens, "tier": tier, "share_of_ceiling": {"gemm13": one, "gemm2": two}}
        for (tokens, tier), (one, two) in shares.items()
    ]
    found = speed.targets(records, {"1": {"ratio": 2.0}, "8": {"ratio": 1.5}, "16": {"ratio": 0.1}})
    assert [(one["reached"], one["met"]) for one in found.values()] == [(0.76, True), (1.5, False), (None, None)]
    records[0]["share_of_ceiling"]["gemm2"] = 0.74
    assert [one["met"] for one in speed.targets(records, None).values()] == [False, None, None]


def test_a_backend_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\n"
        "name, out = sys.argv[3], sys.argv[5]\n"
        "if name == 'marlin': sys.exit('marlin does not run here')\n"
        "import time; time.sleep(60 if name == 'triton' else 0)\n"
        "json.dump({'provenance': 0, 'backend': 'HUMMING', 'microseconds': {'1': 5.0}}, open(out, 'w'))\n"
    )
    monkeypatch.setattr(sys, "argv", [str(program)])
    found = stock.compare((1,), ("auto", "marlin", "humming", "triton"), seconds=2)
    assert found == {
        "auto": {"backend": "HUMMING", "microseconds": {"1": 5.0}},
        "marlin": {"error": "marlin does not run here"},
        "triton": {"error": "took longer than 2 seconds"},
    }


def test_e4m3_keeps_what_it_can_hold_and_no_more() -> None:
    exact = torch.tensor([448.0, -1.0, 0.875] + [0.0] * 29, dtype=torch.float64)
    for exact_scale in (False, True):
        assert torch.equal(activations.e4m3(exact, exact_scale), exact)
    between = torch.full((32,), 1.0625, dtype=torch.float64)
    between[0] = 448.0
    assert set(activations.e4m3(between, False)[1:].tolist()) <= {1.0, 1.125}


def test_instructions_are_counted_by_kernel() -> None:
    listing = (
        "\t.headerflags\n.text.one:\n /*00*/ F2FP.F16.E4M3.UNPACK_B R1, R2 ;\n /*10*/ HMMA.16816.F32 R4, R4, R6, RZ ;\n"
        ".text.two:\n /*00*/ QMMA.16832.F32.E4M3.E4M3 R8, R8, R6, RZ ;\n /*10*/ IADD3 R1, R2, R3 ;\n"
    )
    assert sass.count(listing) == {
        "one": {"F2FP.F16.E4M3.UNPACK_B": 1, "HMMA.16816.F32": 1},
        "two": {"QMMA.16832.F32.E4M3.E4M3": 1},
    }


def test_the_choice_of_bfloat16_stands_on_its_result() -> None:
    """What the docstring of activations.py says, from the committed file."""
    found = json.loads((ROOT / "bench" / "results" / "kernels_activations.json").read_text())
    assert found["values"] >= 300_000
    for errors in found["relative_error"].values():
        e4m3 = [error / errors["bf16"] for name, error in errors.items() if name != "bf16"]
        assert errors["bf16"] < 3e-3 and 13 < min(e4m3) and max(e4m3) < 30
    mma = {arch: " ".join(kernels["fp8_mma"]) for arch, kernels in found["instructions"].items()}
    assert [arch for arch, names in mma.items() if "QMMA" in names] == ["sm_89", "sm_120a"]
    assert all("HMMA" in mma[arch] and "F2FP" in mma[arch] for arch in ("sm_90a", "sm_100a"))


COUNTERS = """==PROF== Connected
"ID","Kernel Name","gpu__time_duration.sum","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_math_per_issue_active.ratio","sm__pipe_x.avg.pct_of_peak_sustained_active"
"","","ns","inst","inst","%"
"0","moet_decode13_n8(GemmParams)","18,500","1.5","2.5","40"
"1","moet_decode2_n8(GemmParams)","8000","0","n/a","50"
""".replace("\\\n", "")


def test_counters_are_read_and_sorted() -> None:
    first, second = counters.records(COUNTERS, (1,))
    assert first["kernel"] == "moet_decode13_n8" and first["tokens"] == 1 and first["microseconds"] == 18.5
    assert list(first["stalls"].items()) == [("math", 2.5), ("wait", 1.5)] and second["stalls"] == {}
    assert first["memory_percent"] is None and first["other"] == {"sm__pipe_x.avg.pct_of_peak_sustained_active": 40.0}


def test_counters_of_too_few_kernels_are_refused() -> None:
    with pytest.raises(SystemExit, match="saw 2 GEMMs, expected two for each of 2"):
        counters.records(COUNTERS, (1, 8))
