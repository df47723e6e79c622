"""The committed recordings: each is judged again as it was, and each gate of each suite has one that fails it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from suites_under_test import FIXTURES, SUITES

from validation.core import command, derived, digest, manifest, rundir
from validation.core.errors import ReplayError
from validation.core.replay import replay

FAILING = sorted(FIXTURES.glob("*/failing/*.yaml"))


@pytest.fixture
def copy(tmp_path):
    """A recording that a test may damage."""
    return Path(shutil.copytree(FIXTURES / "tools" / "demo", tmp_path / "run"))


@pytest.mark.parametrize("name", SUITES)
def test_a_recording_is_judged_as_it_was(name, capsys):
    assert command.main(SUITES[name], ["--replay", str(FIXTURES / name / "demo" / "manifest.json")]) == 0
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.parametrize("name", SUITES)
def test_a_recording_says_that_it_is_of_the_demo_model(name):
    plan = manifest.read(FIXTURES / name / "demo")["plan"]
    assert (plan["server"]["model"], plan["server"]["recipe"]) == ("moet-demo", "demo-cpu")
    assert "says nothing about" in plan["about"]
    assert len(plan["server"]["audit_sha256"]) == len(plan["server"]["recipe_sha256"]) == 64
    assert "/" not in plan["provenance"]["command"].replace(f"validation/run_{name}.py", "")


@pytest.mark.parametrize("path", FAILING, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_a_gate_fails(path, capsys):
    suite = SUITES[path.parts[-3]]
    assert command.main(suite, ["--replay", str(path)]) == 1
    told = capsys.readouterr().out.splitlines()
    failed = [line.split()[1] for line in told if line.startswith("FAIL")]
    assert sorted(failed) == sorted(derived.load(path).fails)


@pytest.mark.parametrize("name", SUITES)
def test_every_gate_has_a_recording_that_fails_it(name):
    failed = {gate for path in FAILING if path.parts[-3] == name for gate in derived.load(path).fails}
    assert failed == set(SUITES[name].all_gates())


def refused(folder: Path) -> str:
    with pytest.raises(ReplayError) as raised:
        replay(SUITES["tools"], folder)
    return str(raised.value)


def test_a_line_edited_by_hand_is_caught(copy):
    path = copy / rundir.RECORDS
    path.write_text(path.read_text().replace("Paris", "Rome"))
    assert "is not what the manifest was sealed over" in refused(copy)


def test_a_result_edited_by_hand_is_caught(copy):
    path = copy / manifest.MANIFEST
    path.write_text(path.read_text().replace('"faults": 0', '"faults": 1', 1))
    assert "was changed after it was sealed" in refused(copy)


def test_a_result_that_is_sealed_again_is_caught(copy):
    document = manifest.read(copy)
    document["outcome"]["measures"]["completion_tokens"] += 1
    manifest.write(copy, manifest.closed(document, copy, document["outcome"]))
    assert "is not what its records give" in refused(copy)


def test_a_record_edited_and_sealed_over_is_caught_by_its_own_digest(copy):
    path = copy / rundir.RECORDS
    path.write_text(path.read_text().replace("kitchen", "cellar"))
    document = json.loads((copy / manifest.MANIFEST).read_text())
    manifest.write(copy, manifest.closed(document, copy, document["outcome"]))
    assert "was changed after it was recorded" in refused(copy)


def test_other_cases_are_caught(copy):
    document = manifest.read(copy)
    document["plan"]["cases"]["files"]["demo.yaml"] = digest.of_text("other")
    manifest.write(copy, manifest.closed(document, copy, document["outcome"]))
    assert "have changed since they were recorded" in refused(copy)


def test_another_request_is_caught(copy):
    document = manifest.read(copy)
    document["plan"]["run_id"] = "another"  # and with it every cache salt
    manifest.write(copy, manifest.closed(document, copy, document["outcome"]))
    assert "request 1 is not the one that was recorded" in refused(copy)


def test_a_run_of_another_suite_is_refused(capsys):
    assert command.main(SUITES["tools"], ["--replay", str(FIXTURES / "needle" / "demo")]) == 2
    assert capsys.readouterr().err.endswith("not of tools; use run_needle.py\n")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("{invocation: nobody, drop: true}", "nobody is no invocation"),
        ("{invocation: smoke-weather, exchange: 9, set: {content: x}}", "has 1 exchanges"),
        ("{invocation: smoke-weather, set: {colour: x}}", "colour cannot be set"),
        ("{invocation: smoke-weather, colour: x}", "Extra inputs are not permitted"),
    ],
)
def test_an_edit_that_cannot_be_made_is_told(tmp_path, capsys, edit, words):
    path = tmp_path / "edit.yaml"
    path.write_text(f"about: a\nfrom: {FIXTURES / 'tools' / 'demo'}\nedits: [{edit}]\nfails: [x]\n")
    assert command.main(SUITES["tools"], ["--replay", str(path)]) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("about: a case set\nsettings: {max_tokens: 1}\n", "from: Field required (and 3 more)"),
        ("about: [", "while parsing a flow"),
        (b"\xff\xfe\xfa", "'utf-8' codec"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_is_no_derived_recording_is_told(tmp_path, capsys, content, reason):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert command.main(SUITES["tools"], ["--replay", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"tools: error: {path} is no derived recording: {reason}") and "http" not in told
    assert told.endswith("; name a run's folder, or a file that is one\n") and told.count("\n") == 1


def test_a_folder_that_is_no_run_is_told(tmp_path, capsys):
    assert command.main(SUITES["tools"], ["--replay", str(tmp_path)]) == 2
    assert "name a run's folder" in capsys.readouterr().err
