"""What a client of a server sees: completions of token-id prompts with their times, and the counters of /metrics."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_FOREIGN = frozenset({"engine", "model_name", "rank"})
"""Labels that say whose value it is, where there is one server with one worker."""


@dataclass
class Completion:
    """One streamed completion; times are of ``time.perf_counter``.

    Attributes:
        started: when the request was sent.
        tokens: token ids in the order of their arrival.
        arrivals: (time, tokens so far) of each piece that brought tokens.
        prompt_tokens: as the server counts them.
    """

    started: float
    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0

    @property
    def first_token_seconds(self) -> float:
        return self.arrivals[0][0] - self.started

    @property
    def seconds(self) -> float:
        return self.arrivals[-1][0] - self.started


class Client:
    """Talks to one server."""

    def __init__(self, host: str, port: int, model: str) -> None:
        self.host, self.port, self.model = host, port, model

    def complete(
        self, prompt: list[int], tokens: int, timeout: float, on_token: Callable[[], object] | None = None
    ) -> Completion:
        """Exactly ``tokens`` tokens after a prompt of token ids.

        Args:
            prompt: token ids.
            tokens: tokens to generate; end-of-sequence does not end it.
            timeout: seconds that the whole completion may take.
            on_token: called whenever tokens have come.

        Raises:
            RuntimeError: the server refused, broke off, or gave another number of tokens.
            TimeoutError: it was too slow.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        sent = json.dumps(body)
        made = Completion(time.perf_counter())
        try:
            connection.request("POST", "/v1/completions", sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.read(2000)!r}")
            for line in answer:
                if _take(made, line) and on_token is not None:
                    on_token()
                if time.perf_counter() - made.started > timeout:
                    raise TimeoutError(f"{len(made.tokens)} of {tokens} tokens after {timeout:.0f} s")
        finally:
            connection.close()
        if len(made.tokens) != tokens:
            raise RuntimeError(f"{len(made.tokens)} tokens came instead of {tokens}")
        return made

    def complete_together(self, prompts: list[list[int]], tokens: int, timeout: float) -> list[Completion]:
        """One completion of each prompt, all at once; errors as of :meth:`complete`."""
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(lambda prompt: self.complete(prompt, tokens, timeout), prompts))

    def healthy(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and by the labels that tell them apart; histogram buckets are left out."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/metrics", timeout=30) as answer:
            return parse(answer.read().decode())


def parse(text: str) -> dict[str, float]:
    """Samples of Prometheus' text format that begin with ``vllm:`` or ``moet_``."""
    samples = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or not match[1].startswith(("vllm:", "moet_")) or match[1].endswith(("_bucket", "_created")):
            continue
        labels = [f'{name}="{value}"' for name, value in _LABEL.findall(match[2] or "") if name not in _FOREIGN]
        samples[match[1] + (f"{{{','.join(labels)}}}" if labels else "")] = float(match[3])
    return samples


def growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """How much each counter has grown, where it has; gauges are left out."""
    return {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if name.partition("{")[0].endswith(("_total", "_sum", "_count")) and value != before.get(name, 0.0)
    }


def decode(completions: list[Completion]) -> dict[str, Any]:
    """Rates of completions that ran together.

    ``decode_tokens_per_s`` counts what came after each one's first piece, from the moment at which all had theirs.
    """
    began = max(done.arrivals[0][0] for done in completions)
    ended = max(done.arrivals[-1][0] for done in completions)
    later = sum(len(done.tokens) - _so_far(done, began) for done in completions)
    total = sum(len(done.tokens) for done in completions)
    return {
        "requests": len(completions),
        "tokens": [len(done.tokens) for done in completions],
        "prompt_tokens": [done.prompt_tokens for done in completions],
        "first_token_seconds": [done.first_token_seconds for done in completions],
        "seconds": ended - min(done.started for done in completions),
        "decode_tokens_per_s": later / (ended - began) if ended > began else None,
        "tokens_per_s": total / (ended - min(done.started for done in completions)),
        "distinct_tokens": len({token for done in completions for token in done.tokens}),
    }


def _so_far(done: Completion, moment: float) -> int:
    return max((count for time_, count in done.arrivals if time_ <= moment), default=0)


def _take(made: Completion, line: bytes) -> bool:
    """One line of the event stream; whether it brought tokens."""
    text, had = line.decode().strip(), len(made.tokens)
    if not text.startswith("data: ") or text == "data: [DONE]":
        return False
    event = json.loads(text.removeprefix("data: "))
    if "error" in event:
        raise RuntimeError(f"the server broke off: {event['error']}")
    if event.get("usage"):
        made.prompt_tokens = event["usage"]["prompt_tokens"]
    for choice in event.get("choices", []):
        if choice.get("token_ids"):
            made.tokens += choice["token_ids"]
            made.arrivals.append((time.perf_counter(), len(made.tokens)))
    return len(made.tokens) > had
