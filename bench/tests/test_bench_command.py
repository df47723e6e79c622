"""The command bench/cli.py: exit codes, what it hands to others, and two results side by side."""

from __future__ import annotations

import dataclasses
import http.server
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import bench_samples as samples
import cli
import pytest
import serving
from bench_samples import facts
from runner import load as loads
from runner import tables
from runner.fault import BenchError
from runner.library import Library

DEMO = samples.ROOT / "demo" / "checkpoint"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    samples.checkout(tmp_path, samples.served(), samples.served(rate=72.0))
    return tmp_path


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.facts, "provenance", lambda: samples.PROVENANCE)


def test_lint_and_render_end_with_1_where_something_is_wrong(root: Path, capsys) -> None:
    assert cli.main(["lint"], root) == 0 and "0 faults, 3 notes" in capsys.readouterr().out
    assert cli.main(["render", "--check"], root) == 1 and "is missing; run" in capsys.readouterr().out
    assert cli.main(["render"], root) == 0 and "wrote bench/plots/startup.svg" in capsys.readouterr().out
    assert cli.main(["render", "--check"], root) == 0
    path = root / "bench" / "results" / "serving_0.json"
    path.write_text(path.read_text().replace("72.0", "73.0").replace("90.0", "91.0"))
    assert cli.main(["lint"], root) == 1 and "edited" in capsys.readouterr().out
    assert cli.main(["render", "--list"], root) == 0 and "profiles" in capsys.readouterr().out


def test_two_results_side_by_side(root: Path, capsys) -> None:
    first, second = (root / "bench" / "results" / f"serving_{number}.json" for number in (0, 1))
    assert cli.main(["compare", str(first), str(second)], root) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("phases.decode_1x1024.client.decode_tokens")]
    assert line.split()[1:] == ["90", "72", "0.800"] and "differs" not in said
    assert cli.main(["compare", str(first), str(second), "--worse-than", "25"], root) == 0
    assert cli.main(["compare", str(first), str(second), "--worse-than", "15"], root) == 1
    assert "worse by 20.0%: phases.decode_1x1024" in capsys.readouterr().out
    assert cli.main(["compare", str(second), str(first), "--worse-than", "15"], root) == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "gone: {}"), ("not measured", "gone: {}"), (math.nan, "gone: {}"), (90.0, None)],
)
def test_a_rate_that_is_gone_may_have_become_worse(root: Path, capsys, value: object, told: str | None) -> None:
    name = "phases.decode_1x1024.client.decode_tokens_per_s"
    document = samples.served("h200-300k")
    assert document["phases"]["decode_1x1024"]["client"]["decode_tokens_per_s"] == 90.0
    document["phases"]["decode_1x1024"]["client"]["decode_tokens_per_s"] = value
    samples.store(root, facts.sealed(document), "other.json")
    first, second = (str(root / "bench" / "results" / file) for file in ("serving_0.json", "other.json"))
    assert cli.main(["compare", first, second, "--worse-than", "5"], root) == int(told is not None)
    said = capsys.readouterr().out
    assert (f"only in A, not B: {name}\n" in said) == (told == "gone: {}")
    assert told is None or said.endswith(f"\n{told.format(name)}\n")
    assert cli.main(["compare", second, first, "--worse-than", "5"], root) == 0


@pytest.mark.parametrize(("times", "told"), [([2.0, 9.0], "worse by 350.0%: {}.1"), ([2.0], "gone: {}.1")])
def test_times_in_a_list_are_judged_too(root: Path, capsys, times: list[float], told: str) -> None:
    name = "phases.decode_1x1024.client.first_token_seconds"
    for file, values in (("one.json", [2.0, 2.0]), ("other.json", times)):
        document = samples.served("h200-300k")
        document["phases"]["decode_1x1024"]["client"]["first_token_seconds"] = values
        samples.store(root, facts.sealed(document), file)
    first, second = (str(root / "bench" / "results" / file) for file in ("one.json", "other.json"))
    assert cli.main(["compare", first, second, "--worse-than", "5"], root) == 1
    assert capsys.readouterr().out.endswith(f"\n{told.format(name)}\n")
    assert cli.main(["compare", first, first, "--worse-than", "5"], root) == 0


def test_what_makes_two_results_incomparable_is_told(root: Path, capsys) -> None:
    document = samples.served("h200-512k")
    document["provenance"]["commit"] = "b" * 40
    document["provenance"]["versions"]["torch"] = "9"
    document["provenance"]["dirty"] = True
    samples.store(root, facts.sealed(document), "other.json")
    folder = root / "bench" / "results"
    assert cli.main(["compare", str(folder / "serving_0.json"), str(folder / "other.json")], root) == 0
    said = capsys.readouterr().out
    for line in ("commit: aaaa", "torch: None | 9", "configuration: h200-300k | h200-512k", "uncommitted changes"):
        assert line in said
    assert cli.main(["compare", str(folder / "other.json"), str(folder / "kernels_h200.json")], root) == 2
    assert "compare two of one benchmark" in capsys.readouterr().err


@pytest.mark.parametrize("bound", ["nan", "-5", "inf"])
def test_a_bound_that_bounds_nothing_is_refused(root: Path, capsys, bound: str) -> None:
    """Nothing is worse by more than NaN: the gate would be off, and nobody told."""
    first, second = (str(root / "bench" / "results" / f"serving_{number}.json") for number in (0, 1))
    assert cli.main(["compare", first, second, "--worse-than", bound], root) == 2
    said = capsys.readouterr()
    assert said.err == f"bench: error: --worse-than {bound} is no bound; give a percentage of 0 or more, such as 5\n"
    assert said.out == ""
    assert cli.main(["compare", first, first, "--worse-than", "0"], root) == 0


@pytest.mark.parametrize("turn", [1, -1])
def test_an_edited_result_is_not_compared(root: Path, capsys, turn: int) -> None:
    first, second = (root / "bench" / "results" / f"serving_{number}.json" for number in (0, 1))
    second.write_text(second.read_text().replace("72.0", "95.0"))
    assert cli.main(["compare", *(str(path) for path in (first, second)[::turn])], root) == 2
    said = f"{second}: edited: payload_sha256 is not that of what it holds; write it again by its command"
    assert capsys.readouterr().err == f"bench: error: {said}\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("72.0", "95.0"), "edited: payload_sha256 is not that of what it holds"),
        (lambda text: "{}", "the file: 'provenance' is a required property"),
    ],
)
@pytest.mark.parametrize("how", [[], ["--check"]])
def test_nothing_is_rendered_of_a_result_that_is_none(root: Path, capsys, change, said: str, how: list[str]) -> None:
    path = root / "bench" / "results" / "serving_1.json"
    path.write_text(change(path.read_text()))
    assert cli.main(["render", *how], root) == 2
    line = f"bench/results/serving_1.json: {said}; write it again by its command"
    assert capsys.readouterr().err == f"bench: error: {line}\n"
    assert not (root / "bench" / "plots").exists()


def test_a_result_of_no_named_benchmark_is_told_so(root: Path, capsys) -> None:
    samples.store(root, {"provenance": samples.PROVENANCE, "seconds": 3.0}, "other.json")
    folder = root / "bench" / "results"
    assert cli.main(["compare", str(folder / "other.json"), str(folder / "serving_0.json")], root) == 2
    said = f"{folder}/other.json names no benchmark, {folder}/serving_0.json is of 'serving'"
    assert capsys.readouterr().err == f"bench: error: {said}; compare two of one benchmark\n"


def test_a_reader_that_has_enough_is_no_error() -> None:
    result = str(samples.ROOT / "bench" / "results" / "startup_cpu.json")
    command = [sys.executable, cli.__file__, "compare", result, result]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is printed
        said = process.stderr.read()
    assert said == b"" and process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "is not JSON ("),
        ('{"provenance": {', "is not JSON ("),
        ("\udcff", "is not JSON ("),
        ("[1]", "is no result: it has no whole provenance"),
        ('{"seconds": 3.0}', "is no result: it has no whole provenance"),
        ('{"provenance": {"commit": null, "command": "x", "dirty": false, "hardware": {}}}', "is no result: it has no"),
        (
            '{"provenance": {"commit": 5, "command": "x", "dirty": false, "hardware": {}, "versions": {}}}',
            "is no result",
        ),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_what_is_no_result_is_named_with_those_that_there_are(
    root: Path, tmp_path: Path, capsys, content: str | None, said: str, turn: int
) -> None:
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content, errors="surrogateescape")
    given = [str(root / "bench" / "results" / "serving_0.json"), str(other)][::turn]
    assert cli.main(["compare", *given], root) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bench: error: {other} {said}")
    assert "; name a result file; bench/results has host_memory_h200.json, kernels_h200.json, " in line
    assert line.endswith("serving_0.json, serving_1.json")


def test_results_of_this_checkout_are_results(capsys) -> None:
    for path in sorted((samples.ROOT / "bench" / "results").glob("*.json")):
        assert cli.main(["compare", str(path), str(path)]) == 0, capsys.readouterr().err


def test_run_hands_the_recipe_and_the_box_s_limit_to_serving(root: Path, on_h200, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(cli.subprocess, "call", lambda command, cwd: ran.append((cwd, *command)) or 3)
    assert cli.main(["run", "--recipe", "h200-300k", "--", "--prefill", "32768"], root) == 3
    (command,) = ran
    assert command[0] == root and command[2] == str(samples.ROOT / "bench" / "serving.py")
    assert command[3:] == (
        *("--recipe", "bench/recipes/h200-300k.yaml", "--budget", "550"),
        *("--out", str(root / "bench" / "results" / "serving_h200-300k_h200.json"), "--prefill", "32768"),
    )
    assert cli.main(["run", "--recipe", "h200-300k", "--", "--budget", "60"], root) == 3
    assert ran[1].count("--budget") == 1


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("", "it is a folder"),
        ("file/below.json", "File exists"),
        ("/proc/x/y.json", "No such file or directory"),
        ("locked.json", "it may not be overwritten"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "load", "serving"])
def test_nothing_is_measured_for_a_result_that_cannot_be_written(
    root: Path, on_h200, monkeypatch, capsys, out: str, why: str, verb: str
) -> None:
    for name in ("file", "locked.json"):
        (root / name).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(cli.subprocess, "call", lambda *_, **__: pytest.fail("it was started"))
    monkeypatch.setattr(loads, "run", lambda *_: pytest.fail("it was started"))
    monkeypatch.setattr(serving, "load", lambda *_: pytest.fail("it was started"))
    path = root / out
    said = f"--out {path} cannot be written ({why}); name a file in a folder that can be written"
    words = ["--recipe", "h200-300k", "--out", str(path)]
    if verb == "serving":
        monkeypatch.setattr(sys, "argv", ["serving.py", *words])
        with pytest.raises(SystemExit) as ended:
            serving.main()
        assert str(ended.value) == said
    else:
        assert cli.main([verb, *words], root) == 2
        assert capsys.readouterr().err == f"bench: error: {said}\n"


def test_a_folder_that_is_not_there_yet_is_made_for_the_result(root: Path, on_h200, monkeypatch) -> None:
    monkeypatch.setattr(cli.subprocess, "call", lambda command, cwd: 0)
    assert cli.main(["run", "--recipe", "h200-300k", "--out", str(root / "new" / "one.json")], root) == 0
    assert list((root / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--recipe", "nothing"], "there is no recipe 'nothing'; name one of demo-cpu"),
        (["run", "--recipe", "demo-cpu"], "recipe demo-cpu is not for box h200"),
        (["run", "--recipe", "pro6000-300k", "--box", "pro6000"], "this machine is not box pro6000: its GPU is NVIDIA"),
        (["run", "--recipe", "h200-300k", "--box", "moon"], "there is no box 'moon'"),
        (["compare", "nothing.json", "nothing.json"], r"nothing.json cannot be read \(No such file or directory\)"),
    ],
)
def test_bad_usage_is_one_line(root: Path, on_h200, capsys, arguments: list[str], said: str) -> None:
    import re

    assert cli.main(arguments, root) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: error: ") and re.search(said, line)


def test_a_recipe_that_git_does_not_know_is_told_so(root: Path, on_h200, monkeypatch, capsys) -> None:
    recipes = root / "bench" / "recipes"
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "bench"], check=True)
    box = root / "bench" / "boxes" / "h200.yaml"
    box.write_text(box.read_text().replace("recipes: [", "recipes: [mine, "))
    (recipes / "mine.yaml").write_text(
        (recipes / "h200-300k.yaml").read_text().replace("name: h200-300k", "name: mine")
    )
    said = "it is there, but git does not know it, and only what git knows is measured; git add"
    line = f"bench/recipes/mine.yaml: {said} bench/recipes/mine.yaml"
    assert cli.main(["run", "--recipe", "mine"], root) == 2
    assert capsys.readouterr().err == f"bench: error: {line}\n"
    cli.main(["lint"], root)
    assert f"note   {line}" in capsys.readouterr().out.splitlines()
    subprocess.run([*git, *line.split("; git ")[1].split()], check=True)
    monkeypatch.setattr(cli.subprocess, "call", lambda command, cwd: 0)
    assert cli.main(["run", "--recipe", "mine"], root) == 0
    assert cli.main(["lint"], root) == 0 and "git does not know" not in capsys.readouterr().out


def test_a_machine_that_no_box_describes_is_told_so(root: Path, monkeypatch, capsys) -> None:
    hardware = samples.HARDWARE | {"gpu": "NVIDIA Abacus"}
    monkeypatch.setattr(cli.facts, "provenance", lambda: {"hardware": hardware})
    assert cli.main(["run", "--recipe", "h200-300k"], root) == 2
    assert "no box of bench/boxes is this machine (NVIDIA Abacus, 16 cores)" in capsys.readouterr().err


UPSTREAM = {
    "num_prompts": 16,
    "completed": 16,
    "failed": 0,
    "total_input_tokens": 8190,
    "total_output_tokens": 2048,
    "duration": 10.0,
    "request_throughput": 1.6,
    "output_throughput": 204.8,
    "total_token_throughput": 1023.8,
} | {f"{kind}_{name}_ms": 5.0 for kind in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl")}

FAKE = """#!{python}
import json, os, sys
given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
if os.environ.get("HOW") == "fail":
    sys.exit("connection refused")
path = os.path.join(given["--result-dir"], given["--result-filename"])
json.dump({document!r} | {{"num_prompts": int(given["--num-prompts"])}}, open(path, "w"))
"""


@pytest.fixture
def vllm(tmp_path: Path):
    def make(document: dict) -> Path:
        path = tmp_path / "vllm"
        path.write_text(FAKE.format(python=sys.executable, document=document))
        path.chmod(0o755)
        return path

    return make


LOAD = loads.Load("http://127.0.0.1:8000", "moet-demo", DEMO, prompts=3)


class Health(http.server.BaseHTTPRequestHandler):
    """A server as far as it is asked before a load; its status is that of its class."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ready():
    """A load for a server that is up."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield dataclasses.replace(LOAD, base_url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_upstream_s_load_is_read_into_parts(vllm, ready) -> None:
    found = loads.run(ready, 20, vllm(UPSTREAM))
    assert found["counts"]["num_prompts"] == 3 and found["client"]["output_throughput"] == 204.8
    assert found["client_milliseconds"]["ttft"] == {"mean": 5.0, "median": 5.0, "p99": 5.0}
    assert found["asked"]["input_tokens"] == 512


def test_a_load_that_failed_is_one_line(vllm, ready, monkeypatch) -> None:
    short = {name: value for name, value in UPSTREAM.items() if name != "p99_itl_ms"}
    with pytest.raises(BenchError, match="has no 'p99_itl_ms'"):
        loads.run(ready, 20, vllm(short))
    monkeypatch.setenv("HOW", "fail")
    with pytest.raises(BenchError, match="ended with status 1: connection refused; is the server up"):
        loads.run(ready, 20, vllm(UPSTREAM))


@pytest.fixture
def upstream_is_not_called(monkeypatch) -> None:
    real = loads.subprocess.run

    def run(command: list[str], **how: object) -> object:
        assert command[1:3] != ["bench", "serve"], "vllm bench serve was started"
        return real(command, **how)

    monkeypatch.setattr(loads.subprocess, "run", run)


def test_without_a_server_a_load_ends_at_once(upstream_is_not_called, monkeypatch, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("HOST", "127.0.0.1")
    monkeypatch.setenv("PORT", str(port))
    remedy = "start one with `moet serve --recipe FILE`, or name the one that runs by --base-url, or by HOST and PORT"
    for words, host in (([], "127.0.0.1"), (["--base-url", f"http://localhost:{port}/"], "localhost")):
        assert cli.main(["load", "--recipe", "demo-cpu", *words]) == 2
        line = f"no server is ready at http://{host}:{port} (Connection refused); {remedy}"
        assert capsys.readouterr().err == f"bench: error: {line}\n"
    assert cli.main(["load", "--recipe", "demo-cpu", "--base-url", "localhost"]) == 2
    assert "no server is ready at localhost (unknown url type: 'localhost/health')" in capsys.readouterr().err


def test_a_server_that_is_not_ready_is_no_server(upstream_is_not_called, ready, monkeypatch) -> None:
    monkeypatch.setattr(Health, "status", 503)
    with pytest.raises(BenchError, match=rf"no server is ready at {ready.base_url} \(/health: status 503\); start one"):
        loads.run(ready, 20)


def test_what_is_no_http_server_is_no_server(upstream_is_not_called) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-something\r\n")

        threading.Thread(target=answer, daemon=True).start()
        asked = dataclasses.replace(LOAD, base_url=f"http://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(BenchError, match="no server is ready at .*SSH-2.0-something"):
            loads.run(asked, 20)


def test_where_there_is_no_tokenizer_upstream_s_tool_does_not_fit(capsys) -> None:
    assert cli.main(["load", "--recipe", "h200-300k"]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err


def test_the_installed_tool_knows_these_options_and_writes_these_fields() -> None:
    """Read from its source: to import it takes longer than all other tests here."""
    from importlib.util import find_spec

    folder = Path(find_spec("vllm").submodule_search_locations[0]) / "benchmarks"
    source = (folder / "serve.py").read_text() + (folder / "datasets" / "datasets.py").read_text()
    command = LOAD.command(Path("vllm"), Path("folder"))
    for option in (word for word in command if word.startswith("--")):
        assert f'"{option}"' in source, option
    for field in loads.COUNTS + loads.RATES:
        assert f'"{field}"' in source, field
    assert all(f'"{name}"' in source for name in loads.LATENCIES)
    assert 'f"mean_{metric_attribute_name}_ms"' in source and 'f"p{p_word}_{metric_attribute_name}_ms"' in source


def test_a_load_result_is_sealed_and_passes(root: Path, vllm, ready) -> None:
    found = loads.run(ready, 20, vllm(UPSTREAM))
    document = {"provenance": samples.PROVENANCE, "configuration": "demo-cpu"} | found
    samples.store(root, facts.sealed(document), "load.json")
    assert cli.main(["lint"], root) == 0
    assert json.loads((root / "bench" / "results" / "load.json").read_text())["benchmark"] == "load"
    line = tables.loads(Library(root), str)[2]
    assert line == "| [demo-cpu](bench/results/load.json) | h200 | 16 | 4 | 8,190 | 204.8 | 5 | 5.0 |"
    assert tables.loads(Library(samples.ROOT), str)[0].startswith("| configuration |")
