"""The evaluation through a server, against a stand-in that speaks the API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from demo import evaluate_server
from demo.make import data, held_out

COUNT = 12


class Stub(BaseHTTPRequestHandler):
    """Answers from `answers`, a map of the last message's text to a choice; 500 where there is none."""

    answers: dict[str, dict] = {}

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = self.answers.get(request["messages"][-1]["content"])
        body = json.dumps({"choices": [choice]} if choice else {"error": "unknown question"}).encode()
        self.send_response(200 if choice else 500)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def right(sample: data.Sample) -> dict:
    """The choice that a faultless server returns."""
    calls = [
        {"function": {"name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"])}}
        for c in sample.target.get("tool_calls", ())
    ]
    message = {"content": sample.target["content"] or None, "tool_calls": calls or None}
    return {"message": message, "finish_reason": "tool_calls" if calls else "stop"}


@pytest.fixture
def base_url() -> Iterator[str]:
    """Address of a stub server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(base_url: str, kind: str, capsys: pytest.CaptureFixture, *more: str) -> tuple[int, dict]:
    """Exit status and printed object."""
    status = evaluate_server.main(["--base-url", base_url, "--kind", kind, "--count", str(COUNT), "--json", *more])
    out = capsys.readouterr().out
    return status, json.loads(out) if out else {}


@pytest.mark.parametrize("kind", held_out.KINDS)
def test_right_answers_count(base_url: str, kind: str, capsys: pytest.CaptureFixture) -> None:
    Stub.answers = {s.messages[-1]["content"]: right(s) for s in held_out.samples(kind, COUNT)}
    status, result = run(base_url, kind, capsys, "--at-least", "1")
    assert status == 0
    assert (result["count"], result["accuracy"]) == (COUNT, 1.0) or kind == "after result"


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["message"].update(content="4711"),
        lambda c: c["message"].update(content=None),
        lambda c: c.update(finish_reason="length"),
        lambda c: c["message"].update(tool_calls=[{"function": {"name": "x", "arguments": "{}"}}]),
    ],
)
def test_wrong_numbers_do_not_count(base_url: str, change, capsys: pytest.CaptureFixture) -> None:
    samples = held_out.samples("arithmetic", COUNT)
    Stub.answers = {s.messages[-1]["content"]: right(s) for s in samples}
    first = samples[0].messages[-1]["content"]
    change(Stub.answers[first])
    status, result = run(base_url, "arithmetic", capsys)
    assert status == 0
    assert result["right"] == sum(s.messages[-1]["content"] != first for s in samples) < COUNT
    assert run(base_url, "arithmetic", capsys, "--at-least", "1")[0] == 1


@pytest.mark.parametrize("arguments", ["{}", "not json", '{"more": 1}'])
def test_wrong_arguments_do_not_count(base_url: str, arguments: str, capsys: pytest.CaptureFixture) -> None:
    samples = held_out.samples("plain call", COUNT)
    Stub.answers = {s.messages[-1]["content"]: right(s) for s in samples}
    for choice in Stub.answers.values():
        choice["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    assert run(base_url, "plain call", capsys)[1]["right"] == 0


def test_a_failing_server_is_an_error(base_url: str, capsys: pytest.CaptureFixture) -> None:
    Stub.answers = {}
    assert evaluate_server.main(["--base-url", base_url, "--count", "1"]) == 1
    assert "answered 500" in capsys.readouterr().err


def test_no_server_is_an_error(capsys: pytest.CaptureFixture) -> None:
    assert evaluate_server.main(["--base-url", "http://127.0.0.1:9", "--count", "1"]) == 1
    assert capsys.readouterr().err.startswith("evaluate_server: error: http://127.0.0.1:9/v1/chat/completions")


@pytest.mark.parametrize("bad", [["--count", "0"], ["--concurrency", "9"], ["--kind", "poetry"]])
def test_bad_input(bad: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        evaluate_server.main(["--base-url", "http://127.0.0.1:9", *bad])
    assert error.value.code == 2
