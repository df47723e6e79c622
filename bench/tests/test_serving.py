"""The client and the server of bench/serving.py against a server that does as it is told."""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import bench_samples
import pytest
from sampled_nvml import Nvml

from moet_w2.planner.settings import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import serving
import serving_client
import serving_server
from runner import served
from runner.gauges import Gauges
from serving_client import Client, Completion

METRICS = """# HELP vllm:prompt_tokens_total of prompts
vllm:prompt_tokens_total{engine="0",model_name="m"} %d
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 3.0
vllm:prompt_tokens_created{engine="0"} 1.7e+09
moet_kv_cache_tokens{rank="0"} 100
python_info{version="3"} 1.0
"""


class Fake(BaseHTTPRequestHandler):
    """Streams what it is asked for, two tokens a piece; the server's ``says`` changes that."""

    def do_GET(self) -> None:
        self.server.asked += 1
        body = (METRICS % self.server.asked).encode()
        self.send_response(200 if self.path in ("/metrics", "/health") else 404)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert wanted["temperature"] == 0 and wanted["ignore_eos"] and wanted["return_token_ids"]
        says = self.server.says
        self.send_response(says.get("status", 200))
        self.end_headers()
        count = wanted["max_tokens"] - says.get("short", 0)
        for first in range(0, count, 2):
            piece = list(range(first, min(first + 2, count)))
            self._event({"choices": [{"token_ids": piece}]})
            time.sleep(says.get("pause", 0))
        if "error" in says:
            self._event({"error": says["error"]})
        self._event({"choices": [], "usage": {"prompt_tokens": len(wanted["prompt"])}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict) -> None:
        try:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        except OSError:
            pass  # the client has left

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture
def fake():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    server.says, server.asked = {}, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def client(fake) -> Client:
    return Client("127.0.0.1", fake.server_address[1], "m")


def test_a_completion_is_counted_and_timed(client) -> None:
    seen = []
    done = client.complete([1, 2, 3], 5, 10, on_token=lambda: seen.append(1))
    assert done.tokens == [0, 1, 2, 3, 4] and done.prompt_tokens == 3
    assert [count for _, count in done.arrivals] == [2, 4, 5] and len(seen) == 3
    assert 0 < done.first_token_seconds <= done.seconds


@pytest.mark.parametrize(
    ("says", "error", "named"),
    [
        ({"short": 1}, RuntimeError, "4 tokens came instead of 5"),
        ({"status": 400}, RuntimeError, "status 400"),
        ({"error": "died"}, RuntimeError, "broke off: died"),
        ({"pause": 0.15}, TimeoutError, "of 5 tokens after 0 s"),
    ],
)
def test_what_a_server_does_wrong_is_an_error(fake, client, says, error, named) -> None:
    fake.says = says
    with pytest.raises(error, match=named):
        client.complete([1], 5, 0.2 if "pause" in says else 10)


def test_counters_by_the_labels_that_tell_them_apart(client) -> None:
    before = client.metrics()
    assert before == {
        "vllm:prompt_tokens_total": 1.0,
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': 5.0,
        "moet_kv_cache_tokens": 100.0,
    }
    assert serving_client.growth(before, client.metrics()) == {"vllm:prompt_tokens_total": 1.0}


def test_a_rate_counts_what_came_while_all_were_decoding() -> None:
    early = Completion(0.0, list(range(10)), [(1.0, 2), (2.0, 4), (4.0, 10)], 7)
    late = Completion(0.0, list(range(5)), [(2.0, 1), (4.0, 5)], 7)
    found = serving_client.decode([early, late])
    assert found["decode_tokens_per_s"] == (10 - 4 + 5 - 1) / 2.0
    assert found["tokens_per_s"] == 15 / 4.0 and found["tokens"] == [10, 5]


def test_what_the_logger_said_is_read() -> None:
    text = (
        "INFO Available KV cache memory: 7.25 GiB\nINFO GPU KV cache size: 378,490 tokens\n"
        "INFO Engine 000: Avg prompt throughput: 51.2 tokens/s, Avg generation throughput: 99.9 tokens/s, Running: 1\n"
        "INFO [progress.py:1] prefill: 2,048 of 4,096 tokens\n"
        "INFO SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1 tokens/s\n"
    )
    assert serving_server.kv_cache(text) == {"kv_cache_tokens": 378490, "kv_cache_gib": 7.25}
    assert serving_server.logged(text) == {
        "prompt_tokens_per_s": [51.2],
        "generation_tokens_per_s": [99.9],
        "prefill": ["prefill: 2,048 of 4,096 tokens"],
        "mean_acceptance_length": [2.5],
    }
    assert serving_server.kv_cache("INFO CPU KV cache size: 102,274 tokens")["kv_cache_tokens"] == 102274
    assert serving_server.kv_cache("nothing") == {"kv_cache_tokens": None, "kv_cache_gib": None}


LAUNCHER = """
import json, os, subprocess, sys, time
arguments = sys.argv[1:]
if "--dry-run" in arguments:
    served = ["{python}", "{file}", "serving", os.environ.get("HOW", "")]
    document = {{"argv": served, "environment": {{"FROM_RECIPE": "1"}}, "audit_path": os.environ["READY"] + ".d/audit"}}
    print(json.dumps(document))
    sys.exit()
if arguments[0] != "serving" and os.environ.get("REFUSE"):
    print("moet: error: Python: another; install it")
    sys.exit(2)
if os.environ.get("HOW") == "die":
    print("engine core died")
    sys.exit(1)
child = subprocess.Popen(["{python}", "-c", "import time; time.sleep(60)"])
open(os.environ["READY"], "w").write(os.environ.get("FROM_RECIPE", "launched"))
if os.environ.get("HOW") == "orphan":
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
else:
    import signal
    signal.signal(signal.SIGTERM, lambda *_: (child.terminate(), child.wait(), sys.exit(0)))
time.sleep(60)
"""


@pytest.fixture
def launch(tmp_path: Path):
    """A function that starts the fake launcher, and the file that says that it serves."""
    file, ready = tmp_path / "launcher.py", tmp_path / "ready"
    file.write_text(LAUNCHER.format(python=sys.executable, file=file))
    started = []

    def start(leave_out: list[str] | None = None, **environ: str) -> tuple[serving_server.Server, Path]:
        given = dict(os.environ) | {"READY": str(ready)} | environ
        moet = [sys.executable, str(file)]
        server = serving_server.Server(moet, tmp_path / "recipe.yaml", given, tmp_path / "log", tmp_path, leave_out)
        started.append(server)
        return server, ready

    yield start
    for server in started:
        server.stop(0)


def test_a_server_is_stopped_with_all_its_processes(launch) -> None:
    server, ready = launch()
    assert server.wait_until_ready(ready.is_file, 20) > 0 and server.direct is None
    assert len(serving_server.members(server.process.pid)) == 2
    seconds = server.stop(20)
    assert seconds is not None and seconds < 10
    assert serving_server.members(server.process.pid) == [] and server.process.returncode == 0


def test_processes_that_stay_are_killed_and_said_to_have_stayed(launch) -> None:
    server, ready = launch(HOW="orphan")
    server.wait_until_ready(ready.is_file, 20)
    assert server.stop(1.0) is None
    assert serving_server.members(server.process.pid) == []


def test_where_the_launcher_refuses_its_command_runs_without_it(launch) -> None:
    server, ready = launch(REFUSE="1")
    server.wait_until_ready(ready.is_file, 20)
    assert "Python: another" in server.direct and ready.read_text() == "1"
    assert ready.with_name("ready.d").is_dir()


def test_compilers_caches_can_be_left_where_they_are(launch) -> None:
    server, ready = launch(leave_out=["FROM_RECIPE"])
    server.wait_until_ready(ready.is_file, 20)
    assert ready.read_text() == "launched" and server.direct == "not asked"


def test_a_server_that_ends_as_it_is_killed_was_not_killed(launch, monkeypatch) -> None:
    server, ready = launch()
    server.wait_until_ready(ready.is_file, 20)
    assert server.stop() is not None
    seen = iter([[server.process.pid]])
    monkeypatch.setattr(serving_server, "members", lambda session: next(seen, []))
    assert server.stop(0) is not None and next(seen, None) is None


@pytest.mark.parametrize("name", ["h200-300k", "h200-512k", "h200-resident"])
def test_a_recipe_without_speculation_is_one(name, tmp_path: Path) -> None:
    recipes = serving.facts.ROOT / "bench" / "recipes"
    whole = serving.load(recipes / f"{name}.yaml", serving.facts.ROOT)
    made = serving.load(serving.without_speculation(recipes / f"{name}.yaml", tmp_path), serving.facts.ROOT)
    assert "speculative-config" in whole.engine and "speculative-config" not in made.engine
    assert made.expect.w2_layers == 43 and made.expect.mapped_bytes == whole.expect.mapped_bytes
    assert made.w2.exclude_layers == made.w2.mapped_layers


def test_the_launcher_renders_what_a_direct_start_reads() -> None:
    """The fake above says what the real one says."""
    recipe = serving.facts.ROOT / "bench" / "recipes" / "h200-300k.yaml"
    ask = [sys.executable, "-m", "moet_w2.cli", "serve", "--recipe", str(recipe), "--dry-run", "--print", "json"]
    document = json.loads(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)
    assert document["argv"][1] == "serve" and "moet_synthetic" in document["argv"]
    assert document["environment"]["VLLM_MOE_W2_MAPPED_LAYERS"] == "43,44,45" and document["audit_path"]


def test_a_server_that_ends_or_hangs_is_an_error(launch) -> None:
    server, ready = launch(HOW="die")
    with pytest.raises(RuntimeError, match="ended with status 1: engine core died"):
        server.wait_until_ready(ready.is_file, 20)
    server, _ = launch()
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        server.wait_until_ready(lambda: False, 0.3)


class Server:
    """What a run asks of its server."""

    def text(self) -> str:
        return ""


@pytest.fixture
def run(client, tmp_path: Path, monkeypatch) -> serving.Run:
    monkeypatch.setattr(serving.facts, "provenance", lambda: bench_samples.PROVENANCE)
    monkeypatch.setattr(serving, "SNAPSHOT_SECONDS", 0.0)
    return serving.Run(Server(), client, Gauges("0", Nvml()), 100, 60.0, tmp_path / "out.json")


def test_each_phase_is_kept_as_it_ends(run) -> None:
    run.phase("decode", 10, run.decode(2, 6))
    document = json.loads(run.out.read_text())
    kept = document["phases"]["decode"]
    assert kept["client"]["tokens"] == [6, 6] and kept["client"]["prompt_tokens"] == [serving.PROMPT] * 2
    assert document["exercised"] == {"longest_prompt_tokens": serving.PROMPT, "most_requests": 2}
    assert kept["gpu"]["samples"] >= 1 and kept["gpu"]["pcie_to_gpu_gb_per_s"]["mean"] == pytest.approx(51.4)
    assert kept["counters"]["vllm:prompt_tokens_total"] > 0 and kept["logger"]["generation_tokens_per_s"] == []


def test_counters_that_come_late_are_of_the_phase_that_they_belong_to(run, monkeypatch) -> None:
    """A worker's counters come with snapshots, here 0.1 s after what they count."""
    monkeypatch.setattr(serving, "SNAPSHOT_SECONDS", 0.3)
    done: list[float] = []  # when

    def counted() -> dict[str, float]:
        return {"moet_steps_total": float(sum(when + 0.1 <= time.perf_counter() for when in done))}

    def work(limit: float) -> dict:
        done.append(time.perf_counter())
        return {}

    monkeypatch.setattr(run.client, "metrics", counted)
    for name in ("first", "second"):
        run.phase(name, 10, work)
    steps = [phase["counters"].get("moet_steps_total") for phase in run.result["phases"].values()]
    assert steps == [1.0, 1.0]


def test_a_phase_that_fails_leaves_its_reason_and_the_next_one_runs(run, fake) -> None:
    fake.says = {"short": 1}
    run.phase("prefill", 10, run.prefill([1, 2]))
    fake.says = {}
    run.phase("again", 10, run.prefill([1, 2]))
    phases = json.loads(run.out.read_text())["phases"]
    assert "0 tokens came instead of 1" in phases["prefill"]["error"]
    assert phases["again"]["client"]["prompt_tokens"] == 2
    assert run.result["exercised"] == {"longest_prompt_tokens": 2, "most_requests": 1}


def test_what_is_measured_keeps_to_the_schema(run, monkeypatch) -> None:
    monkeypatch.setattr(serving, "SHORT", 8)  # the longer prompt is watched
    monkeypatch.setattr(serving, "SETTLE_SECONDS", 0.0)
    settings = Settings(batched=11, speculative=4)  # chunks of 8 tokens
    args = SimpleNamespace(longest=64, tokens=6, prefill=[4, 16], settings=settings)
    serving.measure(run, args)
    whole = bench_samples.served() | run.result
    assert serving.violations(whole) == [] and run.result["schema"] == serving.SCHEMA
    phases = ["warm_up", "warm_up_decode", "decode_1x6", "decode_4x6", "warm_up_tail_4", "prefill_4", "repeated_4"]
    assert list(run.result["phases"]) == [*phases, "warm_up_tail_8", "prefill_16"]
    assert "progress" in run.result["phases"]["prefill_16"]
    assert run.result["exercised"] == {"longest_prompt_tokens": serving.PROMPT, "most_requests": 4}
    whole["phases"]["decode_1x6"]["decode_tokens_per_s"] = 5.0
    assert "'decode_tokens_per_s' was unexpected" in serving.violations(whole)[0]


@pytest.mark.parametrize("speculative", [True, False])
def test_the_last_chunk_of_each_prompt_is_warmed_up(speculative, run, tmp_path: Path, monkeypatch) -> None:
    """As committed results have it: 2,045 tokens a step with drafts, and 32,512 of 32,768 repeated ones hit."""
    sent: list[tuple[str, int]] = []
    recipe = serving.facts.ROOT / "bench" / "recipes" / "h200-300k.yaml"
    if not speculative:
        recipe = serving.without_speculation(recipe, tmp_path)
    monkeypatch.setattr(run, "prompt", lambda tokens: range(tokens))
    monkeypatch.setattr(run, "prefill", len)
    monkeypatch.setattr(run, "phase", lambda name, limit, work: sent.append((name, work)))
    _, settings, _ = serving.of_recipe(serving.load(recipe, serving.facts.ROOT))
    serving.measure(run, SimpleNamespace(longest=299999, tokens=1024, prefill=[250000, 32768], settings=settings))
    tails = [48, 256, 510] if speculative else [2048, 256, 144]
    names = [f"warm_up_tail_{tails[0]}", "warm_up_tail_256", "prefill_32768", "repeated_32768"]
    assert [name for name, _ in sent[4:]] == [*names, f"warm_up_tail_{tails[2]}", "prefill_250000"]
    assert [tokens for _, tokens in sent[4:]] == [*tails[:2], 32768, 32768, tails[2], 250000]


@pytest.mark.parametrize(
    ("tokens", "speculative", "left"),
    [(32768, 4, 256), (1024, 0, 256), (33000, 4, 488), (33000, 0, 232), (32769, 4, 257), (100, 4, 100), (256, 0, 256)],
)
def test_what_the_prefix_cache_leaves_of_a_repeated_prompt(tokens, speculative, left) -> None:
    assert serving.left_of_repeated(tokens, Settings(speculative=speculative)) == left


def test_a_warm_up_is_no_figure_of_a_result() -> None:
    """Its name is none that tables, comparisons or the planner's check look for."""
    result = bench_samples.served()
    result["phases"] = {"warm_up_tail_48": bench_samples.prefill(48, 5.0), "warm_up_tail_510": {"error": "slow"}}
    one = served.Served(SimpleNamespace(document=result))
    assert [one.longest_prefill(), one.failed_prefill(), one.repeated(), list(one.decodes())] == [None, None, None, []]


BUSY, BEGAN = "GPU 3: 45,969 MiB are held", "took something of the card"


@pytest.mark.parametrize(
    ("recipe", "found", "ended"),
    [("h200-300k", BUSY, BUSY), ("h200-300k", None, BEGAN), ("demo-cpu", BUSY, BEGAN)],
    ids=["busy", "free", "not needed"],
)
def test_a_card_that_others_hold_is_refused_first(recipe, found, ended, tmp_path: Path, monkeypatch) -> None:
    def begin(*_) -> None:
        raise SystemExit(BEGAN)

    asked = []
    monkeypatch.setattr(serving, "occupied", lambda gpu: asked.append(gpu) or found)
    for name in ("Held", "Memory", "Server", "Gauges"):
        monkeypatch.setattr(serving, name, begin)
    monkeypatch.setattr(serving.facts, "provenance", dict)
    monkeypatch.setattr(serving, "WORK", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    monkeypatch.delenv("MODEL_PATH", raising=False)
    file = serving.facts.ROOT / "bench" / "recipes" / f"{recipe}.yaml"
    monkeypatch.setattr(sys, "argv", ["serving.py", "--recipe", str(file), "--hold-to", "95"])
    with pytest.raises(SystemExit, match=ended):
        serving.main()
    assert asked == ([] if recipe == "demo-cpu" else ["3"])


def test_without_jsonschema_a_result_is_not_judged(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "runner.schema", None)
    monkeypatch.delattr("runner.schema", raising=False)
    assert serving.violations({}) == [] and "not held against its schema here" in capsys.readouterr().out


def test_what_the_server_has_of_the_card_is_kept_at_each_moment(run) -> None:
    marks = [{"now": 7, "most": 9}, None]
    run.memory = SimpleNamespace(mark=lambda: marks.pop(0))
    run.phase("decode", 10, run.decode(1, 2))
    run.phase("untold", 10, run.decode(1, 2))
    assert json.loads(run.out.read_text())["own_gpu_memory_mib"] == {"decode": {"now": 7, "most": 9}}


def test_phases_after_the_end_of_the_server_are_not_tried(run, fake, client) -> None:
    fake.says = {"error": "engine died"}
    run.phase("prefill_9", 10, run.prefill([1, 2]))
    client.healthy = lambda: False
    run.phase("prefill_10", 10, lambda limit: pytest.fail("ran"))
    assert run.result["phases"]["prefill_10"] == {"skipped": "the server had ended"} and run.failed() == ["prefill_9"]


def test_a_run_fails_with_a_phase_of_it() -> None:
    result = bench_samples.served()
    del result["phases"]["prefill_300000"]
    assert serving.faults(result) == []
    result["phases"]["prefill_9"] = {"error": "RuntimeError: out of memory", "phase_seconds": 1.0}
    assert serving.faults(result) == ["failed: prefill_9: RuntimeError: out of memory"]
    broken = result | {"error": "TimeoutError: not ready"}
    assert serving.faults(broken)[0] == "broke off: TimeoutError: not ready"


def test_a_phase_for_which_no_time_is_left_is_skipped(run) -> None:
    run.deadline = time.perf_counter() + 1
    run.phase("prefill", 10, lambda limit: pytest.fail("ran"))
    assert json.loads(run.out.read_text())["phases"]["prefill"] == {"skipped": "no time was left"}


def test_prompts_differ_so_that_no_prefix_is_cached(run) -> None:
    assert run.prompt(64) != run.prompt(64)


def test_acceptance_from_the_counters() -> None:
    counters = {"vllm:spec_decode_num_drafts_total": 10.0, "vllm:spec_decode_num_accepted_tokens_total": 15.0}
    assert serving.acceptance(counters) == {"drafts": 10.0, "accepted_tokens": 15.0, "tokens_per_step": 2.5}
    assert serving.acceptance({}) is None


def test_what_steps_were_counted_to_read_is_predicted_with() -> None:
    from moet_w2 import recipe
    from moet_w2.planner.model import FLASH

    loaded = recipe.load(serving.facts.ROOT / "bench" / "recipes" / "h200-300k.yaml")
    args = SimpleNamespace(tokens=1024, hbm_gbs=4258.4, pcie_gbs=51.3, sm=9)
    phases = {"decode_1x1024": {"counters": {}}, "decode_4x1024": {"counters": {}}}
    run = SimpleNamespace(result={"phases": phases, "gpu_memory_mib": {"total": 1}})
    drawn = serving.prediction(loaded, FLASH, run, args)
    phases["decode_4x1024"]["counters"] = {"moet_mapped_read_bytes_total": 6e9, "moet_steps_total": 20.0}
    counted = serving.prediction(loaded, FLASH, run, args)
    assert drawn["assumed"]["link_bytes_per_step"] == {} and counted["assumed"]["link_bytes_per_step"] == {"4": 3e8}
    assert counted["decode_tokens_per_s"]["1"] == drawn["decode_tokens_per_s"]["1"]
    assert counted["decode_tokens_per_s"]["4"] > 1.5 * drawn["decode_tokens_per_s"]["4"]
