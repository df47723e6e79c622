"""Load from `vllm bench serve` against a running server, read into a result file of ours.

It draws its prompts as text, by the model's tokenizer, and the server counts their tokens: so it needs a checkpoint
with a tokenizer, and lengths are near what was asked for, not exact. Where a folder holds a config.json alone (made-up
weights), or where exact token ids count, bench/serving.py is the client. Its percentiles of many requests at a given
rate are what ours lacks.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fault import BenchError

COUNTS = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
RATES = ("duration", "request_throughput", "output_throughput", "total_token_throughput")
LATENCIES = ("ttft", "tpot", "itl")
"""Upstream's names of what is taken over; latencies in milliseconds."""
_PROBE_SECONDS = 5
"""What a server may take for its first word; one that is ready answers /health at once."""
_STATISTICS = ("mean", "median", "p99")


@dataclass(frozen=True)
class Load:
    """What is asked for.

    Attributes:
        base_url, model: URL of the server's API, without /v1, and the name that it serves under.
        tokenizer: folder of the checkpoint.
        prompts: number of requests.
        input_tokens, output_tokens: of each; the first about, the second exactly.
        concurrency: requests at once at most.
        tokenizer_mode: as for ``vllm serve``.
    """

    base_url: str
    model: str
    tokenizer: Path
    prompts: int = 16
    input_tokens: int = 512
    output_tokens: int = 128
    concurrency: int = 4
    tokenizer_mode: str = "hf"

    def command(self, vllm: Path, folder: Path) -> list[str]:
        """The command line, which leaves its result in ``folder``/load.json."""
        if not any((self.tokenizer / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise BenchError(
                f"{self.tokenizer}: holds no tokenizer, which vllm bench serve draws its prompts with; "
                "use `bench/cli.py run`, which sends token ids"
            )
        options = {
            "backend": "vllm",
            "base-url": self.base_url,
            "model": self.model,
            "tokenizer": self.tokenizer,
            "tokenizer-mode": self.tokenizer_mode,
            "dataset-name": "random",
            "num-prompts": self.prompts,
            "random-input-len": self.input_tokens,
            "random-output-len": self.output_tokens,
            "max-concurrency": self.concurrency,
            "temperature": 0,
            "seed": 1,
            "result-dir": folder,
            "result-filename": "load.json",
        }
        named = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [str(vllm), "bench", "serve", *named, "--save-result", "--disable-tqdm"]


def run(load: Load, seconds: float, vllm: Path | None = None) -> dict[str, Any]:
    """Run it, and give the result without provenance.

    Raises:
        BenchError: there is no server, it failed, took longer than ``seconds``, or left something else than was
            expected.
    """
    vllm = vllm or Path(sys.executable).with_name("vllm")
    with tempfile.TemporaryDirectory() as folder:
        command = load.command(vllm, Path(folder))
        _look_for_server(load.base_url)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise BenchError(f"vllm bench serve took longer than {seconds:.0f} s; ask for fewer prompts") from None
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["nothing"]
            raise BenchError(f"vllm bench serve ended with status {done.returncode}: {said[0]}; is the server up?")
        return read(Path(folder) / "load.json") | {"asked": _asked(load)}


def _look_for_server(base_url: str) -> None:
    """Ask before upstream's tool does: it imports vLLM and draws prompts first, then fails in every request.

    Raises:
        BenchError: /health is not answered with 200.
    """
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=_PROBE_SECONDS) as answer:
            said = None if answer.status == 200 else f"/health: status {answer.status}"
    except urllib.error.HTTPError as error:
        said = f"/health: status {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or str(reason)
    if said:
        remedy = (
            "start one with `moet serve --recipe FILE`, or name the one that runs by --base-url, or by HOST and PORT"
        )
        raise BenchError(f"no server is ready at {base_url} ({said}); {remedy}")


def read(path: Path) -> dict[str, Any]:
    """What upstream's result file says, in parts that keep counts, rates and latencies apart.

    Raises:
        BenchError: it is not there, or lacks a field.
    """
    try:
        given = json.loads(path.read_text())
        return {
            "benchmark": "load",
            "tool": "vllm bench serve",
            "counts": {name: given[name] for name in COUNTS},
            "client": {name: given[name] for name in RATES},
            "client_milliseconds": {
                name: {kind: given[f"{kind}_{name}_ms"] for kind in _STATISTICS} for name in LATENCIES
            },
        }
    except OSError as error:
        raise BenchError(f"{path.name}: {error.strerror}; vllm bench serve left no result") from None
    except KeyError as error:
        raise BenchError(f"{path.name}: has no {error}; this vLLM writes other fields than load.py reads") from None


def _asked(load: Load) -> dict[str, Any]:
    return {
        "prompts": load.prompts,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "concurrency": load.concurrency,
    }
