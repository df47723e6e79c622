"""Tool calls end to end: the official client, the real server, streamed and whole; and the suites on the same server.

What the model says by itself shows the way through; what it is made to say word for word shows the corpus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from server_support import RECIPE, Server, background
from suites_under_test import FIXTURES, SUITES

from validation import dsml_cases, dsml_endpoint
from validation.core import command, manifest
from validation.dsml_cases import Answer

pytestmark = pytest.mark.server
# Every n-th case by default; MOET_DSML_SERVER_EVERY=1 runs them all (some minutes).
EVERY = int(os.environ.get("MOET_DSML_SERVER_EVERY", "12"))
CASES = dsml_cases.load()[::EVERY]
MODEL = "moet-demo"


def tool(name: str, properties: dict, **more) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


WEATHER = tool("get_weather", {"city": {"type": "string"}})
TIMER = tool("set_timer", {"minutes": {"type": "integer"}})
PARIS = {"role": "user", "content": "What is the weather in Paris?"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with background(tmp_path_factory.mktemp("dsml")) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(client: openai.OpenAI, messages: list[dict], *, stream: bool, **options) -> tuple[Answer, str | None]:
    """An answer, however it came, and its finish reason."""
    options = {"temperature": 0, "max_tokens": 300, **options}
    made = client.chat.completions.create(model=MODEL, messages=messages, stream=stream, **options)
    if not stream:
        choice = made.choices[0]
        calls = tuple((call.function.name, call.function.arguments) for call in choice.message.tool_calls or ())
        reasoning = getattr(choice.message, "reasoning", None)
        return Answer(reasoning or None, choice.message.content or None, calls), choice.finish_reason
    chunks = list(made)
    finish = next((choice.finish_reason for c in chunks[::-1] for choice in c.choices if choice.finish_reason), None)
    return dsml_endpoint.gather(chunks), finish


def both(client: openai.OpenAI, messages: list[dict], **options) -> tuple[Answer, str | None]:
    """The answer, after checking that a stream gives the same."""
    whole, finish = ask(client, messages, stream=False, **options)
    streamed, streamed_finish = ask(client, messages, stream=True, **options)
    assert (streamed.reasoning, streamed.content, streamed.calls) == (whole.reasoning, whole.content, whole.calls)
    assert streamed_finish == finish
    return whole, finish


def say(text: str) -> dict:
    """Options that leave the model nothing else to say."""
    return {"extra_body": {"structured_outputs": {"choice": [text]}, "chat_template_kwargs": {"thinking": False}}}


def test_a_call_and_its_result(client):
    answer, finish = both(client, [PARIS], tools=[WEATHER])
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [("get_weather", {"city": "Paris"})]
    assert finish == "tool_calls" and not answer.content
    whole = client.chat.completions.create(model=MODEL, messages=[PARIS], tools=[WEATHER], temperature=0)
    call = whole.choices[0].message
    messages = [PARIS, call.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Sunny, 20 degrees"})
    after, finish = both(client, messages, tools=[WEATHER])
    assert finish == "stop" and after.content and not after.calls
    assert "DSML" not in after.content


def invoke(name: str, key: str, string: str, value: str) -> str:
    parameter = f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>'
    return f'<｜DSML｜invoke name="{name}">\n{parameter}\n</｜DSML｜invoke>\n'


def test_a_nested_object_comes_back_as_one(client):
    when = {"type": "object", "properties": {"day": {"type": "string"}, "hour": {"type": "integer"}}}
    event = tool("create_event", {"title": {"type": "string"}, "when": when})
    question = [{"role": "user", "content": 'Create an event "Lunch" on Monday at 12.'}]
    answer, _ = both(client, question, tools=[event])
    assert [json.loads(arguments) for _, arguments in answer.calls] == [
        {"title": "Lunch", "when": {"day": "Monday", "hour": 12}}
    ]


def test_parallel_calls_stream_under_their_own_index(client):
    invokes = invoke("get_weather", "city", "true", "Paris") + invoke("set_timer", "minutes", "false", "5")
    text = f"Both.\n\n<｜DSML｜tool_calls>\n{invokes}</｜DSML｜tool_calls>"
    answer, finish = both(client, [PARIS], tools=[WEATHER, TIMER], **say(text))
    found = [(name, json.loads(arguments)) for name, arguments in answer.calls]
    assert found == [("get_weather", {"city": "Paris"}), ("set_timer", {"minutes": 5})]
    assert answer.content == "Both." and finish == "tool_calls"


def test_choice_none_calls_nothing(client):
    answer, finish = both(client, [PARIS], tools=[WEATHER], tool_choice="none")
    assert answer.calls == () and finish in ("stop", "length")


def test_choice_required_calls_something(client):
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    answer, _ = both(client, question, tools=[WEATHER, TIMER], tool_choice="required", max_tokens=500)
    assert answer.calls and all(name in ("get_weather", "set_timer") for name, _ in answer.calls)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in answer.calls)


def test_a_named_choice_calls_that_one(client):
    choice = {"type": "function", "function": {"name": "set_timer"}}
    answer, _ = both(client, [PARIS], tools=[WEATHER, TIMER], tool_choice=choice, max_tokens=500)
    assert {name for name, _ in answer.calls} == {"set_timer"}


def test_a_strict_function_keeps_to_its_schema(client):
    strict = tool("get_weather", {"city": {"enum": ["Oslo"]}}, strict=True)
    answer, _ = both(client, [PARIS], tools=[strict], tool_choice="required")
    assert [json.loads(arguments) for _, arguments in answer.calls] == [{"city": "Oslo"}]


@pytest.mark.parametrize("thinking", [True, False])
def test_json_schema_gives_json_after_thinking_too(client, thinking):
    shape = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    options = {"response_format": shape, "extra_body": {"chat_template_kwargs": {"thinking": thinking}}}
    answer, _ = both(client, [PARIS], **options)
    jsonschema.validate(json.loads(answer.content), SCHEMA)
    assert bool(answer.reasoning) is thinking


def test_broken_arguments_in_a_history_do_not_end_it(client):
    for arguments in ('{"city": "Par', "42", "[1, 2]"):
        call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        messages = [PARIS, {"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": "a", "content": "Sunny"}, PARIS]
        answer, finish = ask(client, messages, stream=False, tools=[WEATHER], max_tokens=50)
        assert finish and (answer.content or answer.calls or answer.reasoning)


def test_the_corpus_word_for_word(client):
    def judge(case: dsml_cases.Case) -> tuple[str, dict | None]:
        return case.id, dsml_endpoint.run(client, MODEL, case)

    with ThreadPoolExecutor(4) as pool:
        results = dict(pool.map(judge, CASES))
    ran = {name: faults for name, faults in results.items() if faults is not None}
    assert {name: faults for name, faults in ran.items() if any(faults.values())} == {}
    assert len(ran) > 0.8 * len(CASES), "most cases can be shown in chat mode"


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_passes_and_its_recording_is_judged_alike(name, server, tmp_path, capsys):
    words = ["--cases", "demo", "--output-dir", str(tmp_path), "--recipe", str(RECIPE), "--base-url", server.url]
    code = command.main(SUITES[name], [*words, "--audit", str(server.run_dir / "audit.json")])
    told = capsys.readouterr()
    assert code == 0, told.out + told.err
    (folder,) = tmp_path.iterdir()
    assert command.main(SUITES[name], ["--replay", str(folder)]) == 0
    assert capsys.readouterr().out == told.out
    found, committed = (manifest.read(path) for path in (folder, FIXTURES / name / "demo"))
    assert found["plan"]["units"] == committed["plan"]["units"]
    assert found["outcome"]["gates"] == committed["outcome"]["gates"]
