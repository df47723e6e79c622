"""Runs against a fake server: what is recorded, what a kill leaves, what is refused."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from audit_document import make
from suite_server import Script, serving

from bench import facts
from moet_w2 import command as rendering
from moet_w2 import exit_status, recipe, served
from validation import run_all
from validation.core import command, live, manifest, progress, rundir
from validation.core.plan import Suite
from validation.suites.needle import Needle
from validation.suites.tools import Tools

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "bench" / "recipes" / "demo-cpu.yaml"
CALLS = {
    "What is the weather in Paris?": ("get_weather", {"city": "Paris"}),
    "Set a timer for 5 minutes.": ("set_timer", {"minutes": 5}),
    "Turn on the light in the kitchen.": ("set_light", {"room": "kitchen", "on": True}),
    'Create an event "Lunch" on Monday at 12.': (
        "create_event",
        {"title": "Lunch", "when": {"day": "Monday", "hour": 12}},
    ),
}


def right(request):
    """The answer of a model that gets everything right."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return {"content": f"Result: {last['content']}"}
    if last["content"] not in CALLS:
        return {"content": "95"}
    name, arguments = CALLS[last["content"]]
    return {"calls": [{"name": name, "arguments": json.dumps(arguments)}], "finish_reason": "tool_calls"}


@pytest.fixture(scope="module")
def audit():
    return make(recipe.load(DEMO))


@pytest.fixture
def stage(tmp_path, monkeypatch, capsys, audit):
    """A checkout that has served the demo recipe; ``run`` runs a suite (the tools') on a server with a script."""
    for name in ("HOST", "PORT", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(facts, "provenance", lambda: {"time": "2027-01-01T00:00:00Z"})
    path = tmp_path / "bench" / "recipes" / DEMO.name
    path.parent.mkdir(parents=True)
    shutil.copy(DEMO, path)
    audit_path, out = tmp_path / "audit.json", tmp_path / "out"
    audit_path.write_text(json.dumps(audit))
    script = Script(right)
    with serving(script) as url:
        overrides = rendering.Overrides(port=int(url.rpartition(":")[2]), audit_path=audit_path)
        loaded = recipe.load(path)
        served.write(loaded, rendering.render(loaded, overrides))

        def run(*words: str, cases: str = "demo", suite: Suite | None = None) -> Namespace:
            old = {"--resume", "--replay"} & set(words)
            new = [] if old else ["--cases", cases, "--output-dir", str(out)]
            code = command.main(suite or Tools(), [*new, *words], root=tmp_path)
            told = capsys.readouterr()
            folders = sorted(out.iterdir()) if out.exists() else []
            return Namespace(code=code, out=told.out, err=told.err, folders=folders)

        yield Namespace(run=run, script=script, path=path, audit_path=audit_path, url=url, out=out)


def failing_at(number: int, how):
    """A right server whose answer to one request is another one."""
    seen = []

    def answer(request):
        seen.append(request)
        return how(request) if len(seen) == number else right(request)

    return answer


def gists(folder: Path) -> dict:
    return {name: entry["gist"] for name, entry in manifest.read(folder)["outcome"]["invocations"].items()}


def test_a_run_is_recorded_judged_and_sealed(stage):
    result = stage.run()
    assert result.code == 0, result.err
    (folder,) = result.folders
    document = manifest.read(folder)
    plan, outcome = document["plan"], document["outcome"]
    assert outcome["passed"] is True and outcome["measures"]["invocations"] == {
        "concurrent": 3,
        "measured": 4,
        "smoke": 1,
    }
    assert plan["server"]["recipe_sha256"] == recipe.load(stage.path).digest
    assert plan["server"]["audit"]["mapped_bytes"] == 3538944
    assert plan["provenance"]["command"] == "python validation/run_tools.py --cases demo"
    assert "[8/8] concurrent3-sum: 1 requests" in result.err and ": ok\n" in result.err
    assert command.main(Tools(), ["--replay", str(folder)]) == 0


def test_requests_carry_seed_and_a_salt_of_their_own(stage):
    stage.run()
    first = {request["cache_salt"] for request in stage.script.requests}
    seeds = [request["seed"] for request in stage.script.requests]
    assert set(seeds) == {11, 23} and len(first) == 8
    stage.script.requests.clear()
    stage.run()
    assert not first & {request["cache_salt"] for request in stage.script.requests}
    assert [request["seed"] for request in stage.script.requests][:7] == seeds[:7]


def test_a_folder_is_never_written_twice(stage, monkeypatch):
    monkeypatch.setattr(manifest, "stamp", lambda: "20270101T000000Z")
    before = stage.run().folders
    content = (before[0] / rundir.RECORDS).read_bytes()
    after = stage.run().folders
    assert [folder.name for folder in after] == ["tools-demo-20270101T000000Z", "tools-demo-20270101T000000Z-2"]
    assert (before[0] / rundir.RECORDS).read_bytes() == content


def test_three_are_asked_at_once(stage):
    inside, most = [], []

    def slow(request):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return right(request)

    stage.script.answer = slow
    assert stage.run().code == 0
    assert max(most[-3:]) == 3 and set(most[:-3]) == {1}


def test_a_smoke_that_fails_ends_the_run(stage):
    stage.script.answer = lambda request: {"content": "Sunny."}
    result = stage.run()
    assert result.code == 1 and len(stage.script.requests) == 1
    assert "must hold before anything else is asked" in result.err
    assert "FAIL complete" in result.out and "FAIL finished" in result.out


def test_an_interrupted_run_goes_on_and_is_as_if_it_never_was(stage):
    whole = stage.run()
    stage.script.answer = failing_at(6, lambda request: None)
    broken = stage.run()
    folder = next(folder for folder in broken.folders if folder not in whole.folders)
    assert broken.code == 2 and broken.err.count("error:") == 1
    assert broken.err.endswith(f"; the server still runs, so go on with: --resume {folder}\n")
    with (folder / rundir.RECORDS).open("a") as file:
        file.write('{"sha256": "torn')  # as a kill within a write leaves it
    begun = (folder / manifest.MANIFEST).read_bytes()
    asked = len(stage.script.requests)
    resumed = stage.run("--resume", str(folder))
    assert resumed.code == 0, resumed.err
    assert "smoke-weather: done before" in resumed.err
    assert len(stage.script.requests) - asked == 10 - 4
    document = manifest.read(folder)
    assert json.loads(begun)["plan"] == document["plan"]
    assert gists(folder) == gists(whole.folders[0])
    assert document["outcome"]["gates"] == manifest.read(whole.folders[0])["outcome"]["gates"]


def recorded(out: Path) -> list[str]:
    return next(out.glob("*/records.jsonl")).read_text().splitlines()


def test_a_killed_run_goes_on(stage):
    def slow(request):
        time.sleep(0.1)
        return right(request)

    stage.script.answer = slow
    process = multiprocessing.get_context("fork").Process(target=stage.run)
    process.start()
    while not (stage.out.exists() and any(stage.out.glob("*/records.jsonl")) and len(recorded(stage.out)) >= 3):
        assert process.is_alive()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    (folder,) = stage.out.iterdir()
    assert "outcome" not in manifest.read(folder)
    resumed = stage.run("--resume", str(folder))
    assert resumed.code == 0, resumed.err
    assert resumed.err.count("done before") >= 3
    assert gists(folder) == gists(next(f for f in stage.run().folders if f != folder))


def test_text_may_hold_what_other_programs_take_for_an_end_of_a_line(stage):
    odd = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"
    stage.script.answer = lambda request: right(request) | {"reasoning": odd}
    folder = stage.run().folders[0]
    _, records = rundir.read(folder)
    assert {exchange.answer.thought for record in records.values() for exchange in record.exchanges} == {odd}
    assert stage.run("--replay", str(folder)).code == 0


def test_a_complete_run_is_not_gone_on_with(stage):
    folder = stage.run().folders[0]
    result = stage.run("--resume", str(folder))
    assert result.code == 2 and "is complete" in result.err


def interrupted(stage) -> Path:
    stage.script.answer = failing_at(3, lambda request: None)
    return stage.run().folders[0]


def test_an_audit_that_the_first_request_rewrites_is_still_of_the_same_server(stage, audit):
    """As Audit.dispatched does: a fresh server has computed nothing yet when a run begins."""
    assert all(layer["first_dispatch_unix"] is None for layer in audit["layers"])
    folder = interrupted(stage)
    asked = copy.deepcopy(audit)
    asked["written_unix"] += 60
    for layer in asked["layers"]:
        layer["first_dispatch_unix"] = asked["written_unix"] - 1
    stage.audit_path.write_text(json.dumps(asked))
    result = stage.run("--resume", str(folder))
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    "change",
    [
        lambda audit: audit.update(pid=audit["pid"] + 1),
        lambda audit: audit["tensor_parallel"].update(server="another"),  # a container numbers its processes anew
        lambda audit: audit["layers"][0].update(address=audit["layers"][0]["address"] + 64),
    ],
    ids=["process", "instance", "address"],
)
def test_a_server_that_was_started_again_does_not_go_on_with_a_run(stage, audit, change):
    folder = interrupted(stage)
    again = copy.deepcopy(audit)
    change(again)
    stage.audit_path.write_text(json.dumps(again))
    result = stage.run("--resume", str(folder))
    assert result.code == 2 and "audit_sha256 of the server is" in result.err and "begin a new run" in result.err


@pytest.mark.parametrize("again", [False, True], ids=["gone", "started again"])
def test_a_server_that_dies_within_a_run_needs_a_new_run(stage, audit, again):
    def die(_):
        stage.script.up = again
        stage.audit_path.write_text(json.dumps(audit | {"pid": audit["pid"] + 1}))

    stage.script.answer = failing_at(3, die)
    result = stage.run()
    assert result.code == 2 and "--resume" not in result.err
    told = f"the server that {result.folders[0]} was begun on is gone; begin a new run on one that is up"
    assert result.err.endswith(f"; {told}\n")


def test_what_can_never_be_asked_needs_another_run(stage):
    result = stage.run("--tokens", "10", suite=Needle())
    assert result.code == 2 and not stage.script.requests
    assert "no prompt of 10 tokens with the needle at 5 was found; choose a longer one" in result.err
    assert result.err.endswith("; then begin a new run, since --resume asks the same again\n")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (400, "then begin a new run, since --resume asks the same again"),
        (404, "then begin a new run, since --resume asks the same again"),
        (429, "the server still runs, so go on with: --resume"),
        (503, "the server still runs, so go on with: --resume"),
    ],
)
def test_a_refusal_by_the_server_is_told_from_a_passing_fault(stage, status, remedy):
    stage.script.tokenize_status = status
    result = stage.run(suite=Needle())
    assert result.code == 2 and f'/tokenize answered {status}: {{"error": "no"}}; {remedy}' in result.err


def test_a_server_that_is_silent_for_too_long_is_told_with_the_flag(stage):
    stage.script.answer = failing_at(1, lambda request: time.sleep(0.4))
    result = stage.run("--timeout", "0.2")
    assert result.code == 2 and "--timeout gives it longer); the server still runs" in result.err


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--only", "sum", "--cases=demo"], "--cases, --only"),
        (["--tok", "236"], "--tokens"),
        (["--acknowledge-full-run", "--output-dir", "x"], "--output-dir, --acknowledge-full-run"),
    ],
)
@pytest.mark.parametrize("verb", ["--resume", "--replay"])
def test_a_flag_without_effect_is_refused(stage, tmp_path, verb, words, flags):
    result = stage.run(verb, str(tmp_path), *words, suite=Needle())
    assert result.code == 2 and f"; {flags} would have no effect: leave it out" in result.err


def test_a_replay_has_no_server_and_no_limit_of_time(stage, tmp_path):
    result = stage.run("--replay", str(tmp_path), "--timeout", "1800", "--no-audit")
    assert result.code == 2 and "; --timeout, --no-audit would have no effect" in result.err


def test_the_server_of_a_run_that_goes_on_is_named_by_flags(stage):
    folder = interrupted(stage)
    result = stage.run("--resume", str(folder), "--base-url", stage.url, "--recipe", str(stage.path), "--timeout", "9")
    assert result.code == 0, result.err


def test_a_record_edited_during_an_interruption_is_caught(stage):
    folder = interrupted(stage)
    path = folder / rundir.RECORDS
    path.write_text(path.read_text().replace("Paris", "Rome"))
    result = stage.run("--resume", str(folder))
    assert result.code == 2 and "line 1 was changed after it was recorded" in result.err


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("verb", ["--resume", "--replay"])
def test_records_that_are_gone_are_told(stage, verb, complete):
    folder = stage.run().folders[0] if complete else interrupted(stage)
    (folder / rundir.RECORDS).unlink()
    asked = len(stage.script.requests)
    result = stage.run(verb, str(folder))
    assert result.code == 2 and len(stage.script.requests) == asked
    told = "is gone, and with it what was answered; put it back, or begin a new run"
    assert result.err == f"tools: error: {folder / rundir.RECORDS} {told}\n"
    assert not (folder / rundir.RECORDS).exists()


@pytest.mark.parametrize("value", ["nan", "0", "-1", "1e30", "inf", "soon"])
def test_a_timeout_that_is_none_is_refused(stage, capsys, value):
    with pytest.raises(SystemExit) as raised:
        stage.run(f"--timeout={value}")
    assert raised.value.code == 2 and not stage.script.requests
    assert f"argument --timeout: {value!r} is not from 0.001 to 86400 seconds\n" in capsys.readouterr().err


def test_a_run_is_held_by_one_process(stage):
    folder = interrupted(stage)
    with rundir.held(folder):
        result = stage.run("--resume", str(folder))
    assert result.code == 2 and "is being run by another process" in result.err


def test_a_recipe_that_changed_since_it_was_served_is_refused(stage):
    stage.path.write_text(stage.path.read_text() + "# edited\n")
    result = stage.run()
    assert result.code == 2 and "has changed since it was served" in result.err and not result.folders


def test_an_audit_that_contradicts_the_recipe_is_refused(stage, audit):
    other = copy.deepcopy(audit)
    other["allocated_mapped_layers"] = [3]
    stage.audit_path.write_text(json.dumps(other))
    result = stage.run()
    assert result.code == 2 and "mapped layers" in result.err and not result.folders


def test_a_missing_audit_is_refused_unless_it_is_said(stage):
    stage.audit_path.unlink()
    result = stage.run()
    assert result.code == 2 and "--no-audit, if W2 is off" in result.err
    assert stage.run("--no-audit").code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, "serves other, not moet-demo"),
        ({"max_model_len": 8}, "max_model_len of moet-demo is 8, the recipe expects 4096"),
    ],
)
def test_another_server_is_refused(stage, change, words):
    vars(stage.script).update(change)
    result = stage.run()
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


def test_a_port_names_the_server(stage, monkeypatch):
    monkeypatch.setenv("PORT", "9")
    result = stage.run()
    assert result.code == 2 and "http://127.0.0.1:9 cannot be asked" in result.err
    assert result.err.endswith("name it by --base-url or HOST and PORT\n")
    monkeypatch.setenv("PORT", stage.url.rpartition(":")[2])
    assert f"8 invocations of {stage.url} (by PORT) into" in stage.run().err


def test_no_server_is_told(stage):
    result = stage.run("--base-url", "http://127.0.0.1:9")
    assert result.code == 2 and "cannot be asked" in result.err and result.err.count("\n") == 1


def test_an_error_status_fails_its_gate_and_the_run_goes_on(stage):
    stage.script.status = 500
    result = stage.run()
    assert result.code == 1 and "FAIL answered" in result.out


def test_only_some_invocations(stage):
    result = stage.run("--only", "light")
    assert result.code == 0 and len(stage.script.requests) == 2
    assert stage.run("--only", "nothing").code == 2


def test_list_and_dry_run_ask_nobody(stage):
    listed = stage.run("--list")
    dry = stage.run("--dry-run", "--model", "any")
    assert not stage.script.requests and not dry.folders
    assert len(listed.out.splitlines()) == 8
    lines = [json.loads(line) for line in dry.out.splitlines()]
    assert lines[-1]["invocations"] == 8 and lines[0]["first"]["model"] == "any"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about: [", "is not YAML"),
        ("about: x\n", "settings: Field required"),
        ("about: x\nabout: y\n", "stands twice"),
    ],
)
def test_a_malformed_case_file_is_one_line(stage, tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    result = stage.run("--list", cases=str(path))
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


def test_a_case_file_that_is_not_there(stage):
    assert "name a case set that is there" in stage.run("--list", cases="none").err
    assert "none.yaml: No such file or directory; name a case set" in stage.run("--list", cases="none.yaml").err


def test_a_file_that_is_there_and_no_case_set(stage):
    told = "tools has no cases 'README.md'; name a case set that is there: full, demo, or a file that ends in .yaml"
    assert stage.run("--list", cases="README.md").err == f"tools: error: {told}\n"


def test_a_long_request_shows_that_it_lives(capsys):
    class Server:
        def get(self, path):
            return 'moet_prefill_remaining_tokens{rank="0"} 1.2e+04\n'

    with progress.alive("long", Server(), 0.02):
        time.sleep(0.1)
    assert "long: 0 s, 12,000 prompt tokens left" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(stage, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "_at_once", interrupt)
    result = stage.run()
    assert result.code == 130 and "go on with --resume" in result.err
    monkeypatch.undo()
    assert stage.run("--resume", str(result.folders[0])).code == 0


def test_all_suites_run_whatever_one_of_them_says(monkeypatch, capsys):
    codes = {"tools": 0, "reasoning": 1, "agentic": 2, "decode": 0, "needle": 0}
    asked = []

    def answer(suite, words, root):
        asked.append((suite.name, words))
        return codes[suite.name]

    monkeypatch.setattr(command, "main", answer)
    assert run_all.main(["--cases", "demo"]) == 2
    assert [name for name, _ in asked] == list(codes) and asked[0][1] == ["--cases", "demo"]
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "== tools passed, reasoning FAILED, agentic not run, decode passed, needle passed"
    codes["tools"] = 130
    assert run_all.main([]) == 130 and len(asked) == 6
    assert run_all.main(["--replay=x"]) == run_all.main(["--resu", "x"]) == 2 and len(asked) == 6


@pytest.mark.parametrize(("flag", "words"), [("--list", "listed"), ("--dry-run", "would be asked")])
def test_all_suites_claim_nothing_where_nobody_was_asked(flag, words, capsys):
    assert run_all.main(["--cases", "demo", flag]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "== " + ", ".join(f"{suite.name} {words}" for suite in run_all.SUITES)


def test_all_suites_say_once_what_is_wrong_for_each(capsys):
    assert run_all.main(["--cases", "nope"]) == 2
    told = capsys.readouterr()
    expected = "run_all.py: error: no suite has cases 'nope'; name demo or full or a .yaml file that is there\n"
    assert (told.out, told.err) == ("", expected)
    with pytest.raises(SystemExit) as caught:
        run_all.main(["--bogus"])
    assert caught.value.code == 2 and "run_all.py: error: unrecognized arguments: --bogus" in capsys.readouterr().err


SCRIPTS = [
    "bench/cli.py",
    *(f"validation/{path.name}" for path in sorted((REPOSITORY / "validation").glob("run_*.py"))),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_another_python_is_told_which_one_to_take(script):
    done = subprocess.run([sys.executable, "-S", script, "--help"], cwd=REPOSITORY, capture_output=True, text=True)
    remedy = f".native/venv-cpu/bin/python {script} ... (make setup)"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{script} needs this distribution's environment: {remedy}\n"


NO_SERVER = ["--base-url", "http://127.0.0.1:1/v1", "--model", "none", "--max-model-len", "1", "--w2-layers", "1"]


@pytest.mark.parametrize(
    "command",
    [
        ["validation/run_tools.py", "--list"],
        ["validation/run_all.py", "--list"],
        ["validation/run_dsml.py", "--parser", "ours", "--only", "plain"],
        ["-m", "validation.smoke", *NO_SERVER, "--mapped-layers", "0", "--mapped-bytes", "1", "--no-audit"],
    ],
)
def test_a_reader_that_has_enough_is_no_error(command):
    run = [sys.executable, *command]
    with subprocess.Popen(run, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is printed
        said = process.stderr.read()
    assert (said, process.returncode) == (b"", exit_status.UNREAD)


def test_nobody_need_read():
    run = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "validation/run_tools.py", "--list"]
    done = subprocess.run(run, cwd=REPOSITORY, stderr=subprocess.PIPE)
    assert (done.stderr, done.returncode) == (b"", 0)
