"""The corpus and its runner: what they refuse, what they report, and that both can say no."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import yaml

from validation import dsml_cases, dsml_endpoint, run_dsml
from validation.dsml_cases import Answer

TOOLS = {"run": {"properties": {"cmd": {"type": "string"}}}}
RIGHT = {
    "id": "a",
    "tools": ["run"],
    "call": "run",
    "inside": "",
    "expect": {"calls": [{"name": "run", "arguments": {}}]},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump(TOOLS))

    def write(*cases: dict):
        (tmp_path / "some.yaml").write_text(yaml.safe_dump(list(cases)))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([RIGHT | {"expekt": 1}], "some.yaml: a: unknown field expekt"),
        ([RIGHT | {"tools": ["walk"]}], "some.yaml: a: tools.yaml declares no tool walk"),
        ([RIGHT, RIGHT], "some.yaml: a occurs twice"),
    ],
)
def test_a_corpus_with_a_slip_is_refused(folder, capsys, cases, message):
    with pytest.raises(dsml_cases.CorpusError, match=f"^{message}"):
        dsml_cases.load(folder(*cases))
    assert run_dsml.main(["--parser", "ours", "--cases", str(folder(*cases))]) == 2
    assert capsys.readouterr().err.startswith(f"run_dsml: error: {message}")


def test_a_right_corpus_passes_and_a_wrong_one_fails(folder, capsys):
    assert run_dsml.main(["--parser", "ours", "--cases", str(folder(RIGHT))]) == 0
    assert capsys.readouterr().out == "1 right, 0 wrong, 0 not run, of 1\n"
    wrong = RIGHT | {"expect": {"content": "x", "calls": []}}
    assert run_dsml.main(["--parser", "ours", "--cases", str(folder(wrong))]) == 1
    out = capsys.readouterr().out
    assert "some.yaml: a\n" in out and "whole: content: expected 'x', got None" in out and "0 right, 1 wrong" in out


def test_no_case_and_no_server_are_wrong_usage(folder, capsys):
    assert run_dsml.main(["--parser", "ours", "--only", "nothing", "--cases", str(folder(RIGHT))]) == 2
    assert run_dsml.main(["--url", "http://127.0.0.1:9", "--cases", str(folder(RIGHT))]) == 2
    assert capsys.readouterr().err.count("run_dsml: error: ") == 2


def test_faults_tell_types_text_and_pieces_apart():
    case = dsml_cases.Case("a", "", [], {"content": "x", "calls": [{"name": "f", "arguments": {"n": 1}}]}, streams=2)
    assert case.faults(Answer(None, "x", (("f", '{"n": 1.0}'),), 2), streamed=True) == []
    for answer, fault in [
        (Answer("r", "x", (("f", '{"n": 1}'),)), "reasoning"),
        (Answer(None, "y", (("f", '{"n": 1}'),)), "content"),
        (Answer(None, "x", (("g", '{"n": 1}'),)), "calls"),
        (Answer(None, "x", (("f", '{"n": true}'),)), "f: expected"),
        (Answer(None, "x", (("f", '{"n": '),)), "f: arguments are no JSON"),
    ]:
        assert [found.startswith(fault) for found in case.faults(answer, streamed=False)] == [True]
    late = case.faults(Answer(None, "x", (("f", '{"n": 1}'),), 1), streamed=True)
    assert late == ["arguments came in 1 deltas, expected at least 2"]


@pytest.mark.parametrize(
    ("output", "thinking", "said"),
    [
        ("</think>Hi", True, "Hi"),
        ("so</think>Hi", True, "<think>so</think>Hi"),
        ("never ends", True, "<think>never ends"),
        ("Hi", False, "Hi"),
        ("</think>", True, None),
        ("", True, None),
    ],
)
def test_what_a_server_is_made_to_say(output, thinking, said):
    case = dsml_cases.Case("a", output, [], {}, thinking=thinking)
    assert dsml_endpoint.forced_text(case) == said


def test_a_stream_is_gathered_as_a_client_does():
    def chunk(**delta):
        fields = {"content": None, "reasoning": None, "tool_calls": None} | delta
        return SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(**fields))])

    def call(index, name=None, arguments=None):
        return [SimpleNamespace(index=index, function=SimpleNamespace(name=name, arguments=arguments))]

    answer = dsml_endpoint.gather([
        chunk(reasoning="r"), chunk(content="c"), chunk(tool_calls=call(0, "f", "")),
        chunk(tool_calls=call(0, None, "{")), chunk(tool_calls=call(1, "g", "{}")),
        chunk(tool_calls=call(0, None, "}")),
    ])  # fmt: skip
    assert answer == Answer("r", "c", (("f", "{}"), ("g", "{}")), 3)


def test_an_error_answer_is_a_fault_not_the_end():
    def refuse(**_):
        raise RuntimeError("no")

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=refuse)))
    case = dsml_cases.Case("a", "</think>x", [], {"content": "x"})
    assert dsml_endpoint.run(client, "m", case) == {"whole": ["RuntimeError: no"], "tokens": ["RuntimeError: no"]}
    forced = dsml_cases.Case("a", "</think>x", [], {}, tool_choice="required")
    assert dsml_endpoint.run(client, "m", forced) is None


def test_the_documents_table_is_the_result_files():
    result = json.loads(run_dsml.RESULT.read_text(encoding="utf-8"))
    table = run_dsml.render(result["rows"], result["total"])
    for document in ("docs/dsml.md", "HOW-IT-WORKS.md"):
        assert table in (run_dsml.ROOT / document).read_text(encoding="utf-8"), document
    cases = dsml_cases.load()
    assert result["total"]["cases"] == len(cases) == result["total"]["ours"]
    assert result["total"]["policy_cases"] == sum(case.policy for case in cases)
