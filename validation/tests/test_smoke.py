"""The validation against a fake server: green when all is right; red, in one line, for each single fault."""

from __future__ import annotations

import copy
import json
import shutil
import socket
import time
from argparse import Namespace
from pathlib import Path

import pytest
from audit_document import make
from fake_server import Behaviour, serve

from moet_w2 import command, recipe, served
from validation import checks, smoke

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "bench" / "recipes" / "demo-cpu.yaml"
IMPORTS_OK = 'print(\'{"moet_w2": "1", "vllm": "2+moet1.cpu"}\')'


@pytest.fixture(scope="module")
def right_audit():
    return make(recipe.load(DEMO))


@pytest.fixture
def stage(tmp_path, monkeypatch, capsys, right_audit):
    """A checkout whose server is right in everything; ``run`` validates it, as spoiled by the test."""
    monkeypatch.setattr(checks, "IMPORTS", IMPORTS_OK)
    for name in ("HOST", "PORT", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "bench" / "recipes" / DEMO.name
    path.parent.mkdir(parents=True)
    shutil.copy(DEMO, path)
    loaded = recipe.load(path)
    document, behaviour = copy.deepcopy(right_audit), Behaviour()
    audit_path = tmp_path / "audit.json"

    def run(*words: str, note: bool = True, stock: bool = False) -> Namespace:
        audit_path.write_text(json.dumps(document))
        with serve(behaviour) as url:
            if note:
                port = int(url.rpartition(":")[2])
                overrides = command.Overrides(port=port, audit_path=audit_path)
                served.write(loaded, command.render(loaded, overrides, stock=stock))
            code = smoke.main([word.replace("URL", url) for word in words], root=tmp_path)
        captured = capsys.readouterr()
        return Namespace(code=code, out=captured.out, err=captured.err)

    return Namespace(run=run, behaviour=behaviour, document=document, path=path, audit_path=audit_path)


def failed(result: Namespace, check: str, *words: str) -> None:
    assert result.code == 1
    assert result.err.startswith(f"validate: FAIL: {check}: ")
    assert result.err.count("\n") == 1 and result.err.endswith("\n")
    for word in words:
        assert word in result.err
    before = list(checks.CHECKS)[: list(checks.CHECKS).index(check)]
    assert lines(result) == [*((mark, name) for name in before for mark in ("..", "ok")), ("..", check)]


def lines(result: Namespace) -> list[tuple[str, str]]:
    """(mark, check) of each line after the first: ".." as it starts, "ok" as it has passed."""
    first, *rest = result.out.splitlines()
    assert first.startswith("validate: http://")
    return [tuple(line.split()[:2]) for line in rest]


def test_everything_holds(stage):
    result = stage.run()
    assert (result.code, result.err) == (0, "")
    assert lines(result) == [(mark, name) for name in checks.CHECKS for mark in ("..", "ok")]
    assert max(map(len, result.out.splitlines())) <= 160
    assert '"28"' in result.out and '{"city": "Paris"}' in result.out


def test_each_check_says_what_it_does_before_it_waits(stage, monkeypatch, capsys):
    """At the moment at which a check begins, its line has reached whoever watches."""
    seen: dict[str, str] = {}

    def watched(name: str, check):
        def begin(context):
            seen[name] = capsys.readouterr().out.splitlines()[-1]
            return check(context)

        begin.__doc__ = check.__doc__
        return begin

    monkeypatch.setattr(smoke, "CHECKS", {name: watched(name, check) for name, check in checks.CHECKS.items()})
    assert stage.run("--health-timeout", "7").code == 0
    assert list(seen) == list(checks.CHECKS)
    for name, line in seen.items():
        assert line.startswith(f"..  {name:<11} ")
    assert seen["health"].endswith("The server answers /health in time (7 s at most)")
    assert seen["arithmetic"].endswith("One sum is answered, to its end")


def test_requests_are_what_a_client_would_send(stage):
    stage.run()
    arithmetic, whole, streamed = stage.behaviour.requests
    assert arithmetic["messages"] == [{"role": "user", "content": checks.QUESTION}]
    assert "tools" not in arithmetic and "chat_template_kwargs" not in arithmetic
    assert whole["tools"] == [checks.WEATHER_TOOL]
    assert streamed == whole | {"stream": True}


def test_json_names_each_check(stage):
    result = stage.run("--json")
    document = json.loads(result.out)
    assert document["passed"] is True and document["model"] == "moet-demo"
    assert [check["name"] for check in document["checks"]] == list(checks.CHECKS)
    assert all(check["state"] == "passed" and check["seconds"] >= 0 for check in document["checks"])


def test_json_of_a_failure_passes_nothing_that_did_not_run(stage):
    stage.behaviour.max_model_len = 8
    result = stage.run("--json")
    document = json.loads(result.out)
    states = [check["state"] for check in document["checks"]]
    assert result.code == 1 and document["passed"] is False
    assert states == ["passed", "passed", "failed", "not run", "not run", "not run"]
    assert result.err.count("\n") == 1


def test_import_that_fails(stage, monkeypatch):
    monkeypatch.setattr(checks, "IMPORTS", "import no_such_module_here")
    failed(stage.run(), "import", "No module named 'no_such_module_here'", "make setup")


def test_vllm_of_someone_else(stage, monkeypatch):
    monkeypatch.setattr(checks, "IMPORTS", IMPORTS_OK.replace("+moet1.cpu", ""))
    failed(stage.run(), "import", "vllm 2 is not this project's build")


def test_real_import_names_both_versions():
    lines = compile(checks.IMPORTS, "imports", "exec")
    assert {"moet_w2", "vllm"} <= set(lines.co_names)


def test_health_that_comes_late_is_waited_for(stage):
    stage.behaviour.healthy_after = 2
    assert stage.run().code == 0
    assert stage.behaviour.health_calls == 3


def test_health_that_does_not_come(stage):
    stage.behaviour.health_status = 503
    start = time.monotonic()
    failed(stage.run("--health-timeout", "0.5"), "health", "/health gave no 200 within 0.5 s (status 503)")
    assert time.monotonic() - start < 5


def test_no_server(stage):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    result = stage.run("--base-url", f"http://127.0.0.1:{port}", "--health-timeout", "0.1")
    failed(result, "health", "Connection refused", "is the server up?")


def test_another_model(stage):
    stage.behaviour.model = "other"
    failed(stage.run(), "models", "serves other, not moet-demo")


def test_model_asked_for_by_flag(stage):
    failed(stage.run("--model", "pennyroyal"), "models", "serves moet-demo, not pennyroyal")


def test_another_limit(stage):
    stage.behaviour.max_model_len = 2048
    failed(stage.run(), "models", "max_model_len of moet-demo is 2048, the recipe expects 4096")


def test_key_is_sent(stage, monkeypatch):
    stage.behaviour.api_key = "word"
    failed(stage.run(), "models", "AuthenticationError")
    monkeypatch.setenv("VLLM_API_KEY", "word")
    assert stage.run().code == 0


DRIFT = {
    "state": ("state", "loading"),
    "quantizer abi": ("quantizer/abi", 99),
    "zero mode": ("quantizer/zero_mode", "other"),
    "configured layers": ("configured_mapped_layers", [2]),
    "allocated layers": ("allocated_mapped_layers", [3]),
    "excluded layers": ("uncorrected_layers", [1]),
    "mapped bytes": ("mapped_bytes", 1),
    "redundant bytes": ("redundant_gpu_w2_bytes", 1),
    "a layer less": ("layers", []),
    "a part's offset": ("layers/0/parts/sc13/offset", 1),
    "a part's bytes": ("layers/0/parts/sc2/bytes", 1),
    "a layer's bytes": ("layers/1/bytes", 1),
    "a layer's redundant bytes": ("layers/2/redundant_bytes", 5),
    "a layer's redundancy not measured": ("layers/2/redundant_bytes", None),
    "a mapped layer without host memory": ("layers/2/host", None),
    "a mapped layer called device": ("layers/3/placement", "device"),
    "pages unverified": ("layers/3/host/pages_by_node", {"0": 1}),
    "pages on two nodes": ("layers/3/host/pages_by_node", {"0": 431, "1": 1}),
    "another schema": ("schema_version", 1),
    "an unknown field": ("surprise", 1),
}


@pytest.mark.parametrize(("place", "value"), DRIFT.values(), ids=DRIFT)
def test_audit_that_drifts(stage, place, value):
    *parents, key = place.split("/")
    section = stage.document
    for parent in parents:
        section = section[int(parent) if parent.isdecimal() else parent]
    assert section.get(key, "absent") != value
    section[key] = value
    failed(stage.run(), "audit")


def test_audit_that_is_not_there(stage, tmp_path):
    failed(stage.run("--audit", str(tmp_path / "none.json")), "audit", "none.json does not exist")


def test_audit_without_w2_is_said_not_to_be_judged(stage):
    stage.document.clear()
    result = stage.run(stock=True)
    assert result.code == 0 and 'judged false, reason "the server runs without W2"' in result.out


def test_recipe_changed_since_it_was_served(stage):
    def edit_after_serving():
        stage.path.write_text(stage.path.read_text() + "# edited\n")

    stage.run()
    note = served.note(stage.path.parents[2]).read_text()
    edit_after_serving()
    served.note(stage.path.parents[2]).write_text(note)
    result = stage.run("--base-url", "URL", note=False)
    failed(result, "audit", "has changed since it was served")


def test_wrong_answer(stage):
    stage.behaviour.answer = "37 - 9 is 27"
    failed(stage.run(), "arithmetic", "'What is 37 - 9?' was answered '37 - 9 is 27', not 28")


@pytest.mark.parametrize("answer", ["37 - 9 = 28", "28.", "**28**"])
def test_right_answers_in_other_words(stage, answer):
    stage.behaviour.answer = answer
    assert stage.run().code == 0


@pytest.mark.parametrize("answer", ["", "none", "28 or 29", "128"])
def test_answers_that_are_not_28(stage, answer):
    stage.behaviour.answer = answer
    failed(stage.run(), "arithmetic", "not 28")


def test_answer_cut_short(stage):
    stage.behaviour.answer_finish = "length"
    failed(stage.run(), "arithmetic", "finish_reason 'length', not 'stop'")


def test_markup_that_leaks(stage):
    stage.behaviour.answer = "</think>28"
    failed(stage.run(), "arithmetic", "markup '</think>' leaked")


CALLS = {
    "no call": ({"call_count": 0, "call_content": "Sunny."}, "has 0 calls and the text 'Sunny.', not one"),
    "two calls": ({"call_count": 2}, "has 2 calls, not one"),
    "another tool": ({"call_name": "get_time"}, "whole answer calls 'get_time', not 'get_weather'"),
    "arguments not JSON": ({"call_arguments": '{"city": '}, "are not JSON"),
    "arguments of another type": (
        {"call_arguments": '{"city": 1}'},
        "break the schema: 1 is not of type 'string'",
    ),
    "an argument too many": ({"call_arguments": '{"city": "Paris", "x": 1}'}, "break the schema"),
    "an argument missing": ({"call_arguments": "{}"}, "break the schema"),
    "another city": ({"call_arguments": '{"city": "Rome"}'}, "do not name Paris"),
    "finish of a text": ({"call_finish": "stop"}, "whole call ended with finish_reason 'stop'"),
    "stream differs": ({"stream_arguments": '{"city": "Paris!"}'}, "differs from the whole one"),
    "stream not JSON": ({"stream_arguments": '{"city": "Paris"'}, "streamed call's arguments"),
    "stream ends otherwise": ({"stream_finish": "stop"}, "streamed call ended with finish_reason 'stop'"),
    "markup in arguments": ({"call_arguments": '{"city": "Paris</｜DSML｜>"}'}, "markup '｜DSML｜' leaked"),
}


@pytest.mark.parametrize(("spoil", "words"), CALLS.values(), ids=CALLS)
def test_tool_call_that_is_wrong(stage, spoil, words):
    for name, value in spoil.items():
        setattr(stage.behaviour, name, value)
    failed(stage.run(), "tool_call", words)


FLAGS = ["--base-url", "URL", "--model", "moet-demo", "--max-model-len", "4096", "--w2-layers", "4"]
FLAGS += ["--mapped-layers", "2,3", "--mapped-bytes", "3538944"]


def test_flags_are_enough(stage):
    result = stage.run(*FLAGS, "--audit", str(stage.audit_path), note=False)
    assert (result.code, result.err) == (0, "")


def test_recipe_by_flag_without_a_note(stage):
    flags = ["--recipe", str(stage.path), "--base-url", "URL", "--audit", str(stage.audit_path)]
    assert stage.run(*flags, note=False).code == 0


@pytest.mark.parametrize(
    ("flags", "check", "words"),
    [
        (["--max-model-len", "1"], "models", "the recipe expects 1"),
        (["--mapped-layers", "1"], "audit", "mapped layers"),
        (["--mapped-bytes", "1"], "audit", "mapped bytes"),
        (["--w2-layers", "9"], "audit", "W2 layers"),
        (["--exclude-layers", "0"], "audit", "uncorrected layers"),
    ],
)
def test_flags_override_the_recipe(stage, flags, check, words):
    failed(stage.run(*flags), check, words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "nothing was served from here and no --recipe is given"),
        (FLAGS, "give one, or --audit"),
        (["--recipe", "absent.yaml"], "absent.yaml: No such file"),
        ([*FLAGS, "--no-audit", "--mapped-layers", "2,2"], "layer key 2 is named twice"),
    ],
)
def test_too_little_or_wrong_is_given(stage, flags, words):
    result = stage.run(*flags, note=False)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("validate: error: ") and words in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--timeout", "--health-timeout"])
@pytest.mark.parametrize("value", ["nan", "0", "-1", "1e30"])
def test_a_time_that_is_none_is_refused(stage, capsys, flag, value):
    with pytest.raises(SystemExit) as raised:
        stage.run(f"{flag}={value}")
    told = capsys.readouterr().err
    assert raised.value.code == 2 and f"argument {flag}: {value!r} is not from 0.001 to 86400 seconds\n" in told


def test_host_and_port_name_the_server_as_they_do_for_the_launchers(stage, monkeypatch):
    """They come before the note of what was served last, and after --base-url."""
    recipe_words = ["--recipe", str(stage.path), "--health-timeout", "0.1"]
    monkeypatch.setenv("PORT", "9")
    failed(stage.run("--health-timeout", "0.1"), "health", "http://127.0.0.1:9/health gave no 200")
    monkeypatch.setenv("HOST", "0.0.0.0")
    for note in (True, False):
        result = stage.run(*recipe_words, note=note)
        failed(result, "health", "http://127.0.0.1:9/health gave no 200")
        assert result.out.startswith("validate: http://127.0.0.1:9 (by HOST and PORT), recipe demo-cpu\n")
    monkeypatch.setenv("HOST", "::1")
    failed(stage.run(*recipe_words), "health", "http://[::1]:9/health gave no 200")
    result = stage.run("--base-url", "URL")
    assert result.code == 0 and "(by --base-url)" in result.out.splitlines()[0]


def test_the_server_that_was_served_last_is_told_as_such(stage, monkeypatch):
    monkeypatch.setenv("PORT", "")
    assert "(by what was served last)" in stage.run().out.splitlines()[0]


@pytest.mark.parametrize(("port", "words"), [("80x", "PORT='80x' is not a port"), ("70000", "PORT=70000 is out of")])
def test_a_port_that_is_none_is_refused(stage, monkeypatch, port, words):
    monkeypatch.setenv("PORT", port)
    result = stage.run()
    assert result.code == 2 and result.out == "" and words in result.err


def test_a_note_of_another_recipe_says_nothing_about_this_one(stage, tmp_path):
    other = tmp_path / "bench" / "recipes" / "other.yaml"
    other.write_text(stage.path.read_text().replace("name: demo-cpu", "name: other"))
    result = stage.run("--recipe", str(other), "--base-url", "URL")
    failed(result, "audit", str(tmp_path / ".native" / "run" / "other" / "audit.json"))
