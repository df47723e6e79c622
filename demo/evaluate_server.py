"""Held-out accuracy through a running server: python -m demo.evaluate_server --base-url http://127.0.0.1:8000

Asks the fixed held-out questions of a kind, greedily, and compares what a client sees: for arithmetic the number in
the content, for calls the names and the exact arguments, for the rest the whole content. Exit status: 0 measured,
1 the server failed or the accuracy is below --at-least, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from demo.make import data, held_out

MAX_TOKENS = 256
MAX_CONCURRENCY = 8


class ServerError(Exception):
    """The server could not be asked, or answered with an error."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate_server", description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", required=True, help="http://host:port, with or without /v1")
    parser.add_argument("--model", default="moet-demo")
    parser.add_argument("--kind", choices=held_out.KINDS, default="arithmetic")
    parser.add_argument("--count", type=int, default=200, help="questions: the first so many of the fixed set")
    parser.add_argument("--concurrency", type=int, default=4, help=f"requests at a time, at most {MAX_CONCURRENCY}")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one request")
    parser.add_argument("--at-least", type=float, default=0.0, help="accuracy below this is a failure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.count < 1:
        parser.error(f"--count {options.count}: at least 1 question")
    if not 1 <= options.concurrency <= MAX_CONCURRENCY:
        parser.error(f"--concurrency {options.concurrency}: from 1 to {MAX_CONCURRENCY}")
    return options


def request_of(sample: data.Sample, model: str) -> dict[str, Any]:
    """The chat request of a sample; thinking and effort are named only where they differ from the server's own."""
    messages = []
    for message in sample.messages:
        calls = [
            call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        messages.append(message | ({"tool_calls": calls} if calls else {}))
    request: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
    if sample.tools:
        request["tools"] = sample.tools
    if not sample.thinking:
        request["chat_template_kwargs"] = {"thinking": False}
    elif sample.effort != "high":
        request["chat_template_kwargs"] = {"thinking": True, "reasoning_effort": sample.effort}
    return request


def ask(base_url: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The first choice of the answer. Raises ServerError naming the address and what went wrong."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    body = urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(body, timeout=timeout) as response:
            return json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} answered {error.code}: {error.read().decode(errors='replace')[:300]}") from error
    except (OSError, ValueError, LookupError) as error:
        raise ServerError(f"{url}: {error}") from error


def is_right(sample: data.Sample, choice: dict[str, Any]) -> bool:
    """Whether the client got the reference answer and generation ended by itself."""
    message = choice["message"]
    got = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    wanted = sample.target.get("tool_calls", ())
    if wanted:
        try:
            parsed = [(name, json.loads(arguments)) for name, arguments in got]
        except ValueError:
            return False
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in wanted]
        return choice["finish_reason"] == "tool_calls" and parsed == calls
    if got or choice["finish_reason"] != "stop":
        return False
    content = (message.get("content") or "").strip()
    if sample.kind == "arithmetic":
        return re.findall(r"-?\d+", content)[-1:] == [sample.target["content"]]
    return content == sample.target["content"]


def main(argv: list[str] | None = None) -> int:
    """Ask, judge, print."""
    options = parse(argv)
    samples = held_out.samples(options.kind, options.count)
    started = time.monotonic()

    def judge(sample: data.Sample) -> tuple[data.Sample, dict[str, Any], bool]:
        choice = ask(options.base_url, request_of(sample, options.model), options.timeout)
        return sample, choice, is_right(sample, choice)

    try:
        with ThreadPoolExecutor(options.concurrency) as pool:
            judged = list(pool.map(judge, samples))
    except ServerError as error:
        print(f"evaluate_server: error: {error}", file=sys.stderr)
        return 1
    right = sum(good for _, _, good in judged)
    wrong = [
        {"question": s.messages[-1]["content"], "wanted": s.target, "got": choice["message"]}
        for s, choice, good in judged
        if not good
    ]
    result = {
        "kind": options.kind,
        "count": len(judged),
        "right": right,
        "accuracy": round(right / len(judged), 4),
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        print(json.dumps(result | {"wrong": wrong}, indent=1, ensure_ascii=False))
    else:
        print("{kind}: {right} of {count} right ({accuracy:.2%}) in {seconds} s".format(**result))
        for entry in wrong[:10]:
            print(f"  wrong: {entry['question']!r}: {entry['got'].get('content')!r} {entry['got'].get('tool_calls')}")
    if result["accuracy"] < options.at_least:
        print(f"evaluate_server: {result['accuracy']:.4f} is below {options.at_least}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
