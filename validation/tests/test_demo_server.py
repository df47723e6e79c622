"""The real server on the tiny checkpoint, as `make demo` starts it. The last test of this file stops it."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import stop_session
from conftest import REPOSITORY, Server

from moet_w2 import audit, recipe
from validation import checks

pytestmark = pytest.mark.server
RECIPE = REPOSITORY / "bench" / "recipes" / "demo-cpu.yaml"
QUESTIONS = ("What is 12 + 30?", "What is 58 - 21?", "What is 7 + 8?", "What is 90 - 45?")


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(client: openai.OpenAI, question: str, **options) -> openai.types.chat.ChatCompletion:
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(
        model="moet-demo", messages=messages, temperature=0, max_tokens=256, **options
    )


def reasoning_of(part: object) -> str:
    return getattr(part, "reasoning", None) or getattr(part, "reasoning_content", None) or ""


def test_log_shows_the_v2_runner(server):
    assert "Using V2 Model Runner" in server.log


def test_log_tells_of_no_error(server):
    assert [line for line in server.log.splitlines() if re.search(r"\bERROR\b|Traceback", line)] == []


def test_validation_passes(server):
    done = server.script("validate-api.sh", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    found = {check["name"]: check["found"] for check in document["checks"]}
    assert document["passed"] is True
    assert found["arithmetic"]["answer"].endswith("28")
    assert found["tool_call"]["arguments"] == {"city": "Paris"}
    assert found["audit"]["judged"] is True


def test_validation_of_another_model_fails_in_one_line(server):
    done = server.script("validate-api.sh", "--model", "another")
    assert done.returncode == 1
    assert done.stderr == f"validate: FAIL: models: {server.url} serves moet-demo, not another\n"


def test_audit_agrees_with_the_recipe_and_the_kernel(server):
    document = audit.load(server.run_dir / "audit.json")
    loaded = recipe.load(RECIPE)
    assert audit.check(document, loaded) == []
    assert [layer["placement"] for layer in document["layers"]] == ["device", "device", "mapped", "mapped"]
    # Not from the audit: the kernel's own count of the worker's locked memory.
    status = Path(f"/proc/{document['pid']}/status").read_text()
    locked = int(re.search(r"^VmLck:\s+(\d+) kB", status, re.M).group(1)) * 1024
    assert locked >= loaded.expect.mapped_bytes
    assert document["pid"] in stop_session.members(server.pid)


def test_a_stream_says_what_the_whole_answer_says(client):
    for question in QUESTIONS[:2]:
        whole = ask(client, question).choices[0]
        content = reasoning = ""
        finish = None
        for chunk in ask(client, question, stream=True):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += reasoning_of(choice.delta)
                finish = choice.finish_reason or finish
        assert (content, reasoning, finish) == (
            whole.message.content or "",
            reasoning_of(whole.message),
            whole.finish_reason,
        )
        assert reasoning and finish == "stop"


def test_four_at_once_answer_as_one_by_one(client):
    alone = [ask(client, question).choices[0].message.content for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda q: ask(client, q).choices[0].message.content, QUESTIONS))
    assert together == alone == ["42", "37", "15", "45"]


def test_a_repeated_question_hits_the_prefix_cache(client, server):
    question = "What is 5 + 6? " * 40
    first, second = (ask(client, question).usage for _ in range(2))
    assert first.prompt_tokens == second.prompt_tokens > 256
    hits = re.search(r"^vllm:prefix_cache_hits_total\{[^}]*\} ([0-9.e+]+)", _metrics(server), re.M)
    assert float(hits.group(1)) >= 256


def test_no_tool_no_call(client):
    message = ask(client, checks.WEATHER_QUESTION).choices[0].message
    assert not message.tool_calls and message.content


def test_a_prompt_beyond_the_limit_is_refused_and_serving_goes_on(client):
    with pytest.raises(openai.BadRequestError, match="4096"):
        ask(client, "9 + " * 4000)
    assert ask(client, QUESTIONS[0]).choices[0].message.content == "42"


def test_a_second_start_is_refused(server):
    done = server.script("serve-demo.sh", "--background")
    assert done.returncode == 1 and f"a server already runs here (process {server.pid})" in done.stderr
    done = server.script("serve-demo.sh")
    assert done.returncode == 2
    assert done.stderr.startswith(f"moet: error: port {server.port} on 127.0.0.1 is in use")
    assert done.stderr.count("\n") == 1
    assert server.pid in stop_session.members(server.pid)


def test_stop_leaves_nothing_behind(server):
    assert len(stop_session.members(server.pid)) >= 3  # API server, engine, worker
    start = time.monotonic()
    done = server.stop()
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 30
    assert stop_session.members(server.pid) == []
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    assert not (server.run_dir / "server.pid").exists()


def _metrics(server: Server) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        return answer.read().decode()
