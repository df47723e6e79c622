"""The real engine on the demo checkpoint, twice by the same command: the first builds and keeps, the second reads.

Each start is a process of its own: this file executed as a script. The engine runs in that process (no API server) and
writes the logits of every generated token over the whole vocabulary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from moet_w2 import audit
from moet_w2.cache import admin, phases

REPOSITORY = Path(__file__).resolve().parents[2]
QUESTIONS = ("What is 12 + 30?", "What is 58 - 21?")
TOKENS = 24

pytestmark = pytest.mark.server


def checkpoint() -> Path:
    return Path(os.environ.get("MODEL_PATH") or REPOSITORY / "demo" / "checkpoint")


def start(folder: Path, name: str) -> dict[str, Any]:
    """One start on the cache in ``folder``; its logits, log, start-up facts and audit."""
    from validation.local import engine_lock  # the child runs this file with another path

    out = folder / name
    out.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_MOE_W2", "MOET_"))}
    # Without compiled bytecode every run would spend 15 s on reading vLLM's sources.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = kept | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_MOE_W2_MAPPED_LAYERS": "2,3",
        "VLLM_MOE_W2_PLANES_CACHE": str(folder / "cache"),
        "VLLM_MOE_W2_MAPPED_AUDIT_PATH": str(out / "audit.json"),
    }
    with engine_lock():
        command = [sys.executable, __file__, str(checkpoint()), str(out / "logits.pt")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return {
        "logits": torch.load(out / "logits.pt"),
        "log": done.stdout + done.stderr,
        "startup": json.loads((out / f"audit{phases.SUFFIX}").read_text()),
        "audit": audit.load(out / "audit.json"),
    }


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("starts")
    made = [start(folder, name) for name in ("built", "read")]
    assert admin.verify(admin.find(folder / "cache", "")) == []
    return made


def test_logits_are_equal_bit_for_bit(starts: list[dict[str, Any]]) -> None:
    built, read = (one["logits"] for one in starts)
    assert built["tokens"] == read["tokens"] and len(built["tokens"]) == len(QUESTIONS)
    vocabulary = json.loads((checkpoint() / "config.json").read_text())["vocab_size"]
    assert built["values"].shape == (sum(map(len, built["tokens"])), vocabulary)
    assert built["values"].isfinite().all() and built["values"].std() > 0.5
    assert torch.equal(built["values"], read["values"])
    assert "Ones: 2 + 0 = 2" in built["answers"][0] and "58 - 21" in built["answers"][1]  # reasoning, and no nonsense


def test_the_first_start_builds_and_the_second_reads(starts: list[dict[str, Any]]) -> None:
    built, read = (one["startup"] for one in starts)
    assert built["built"] == dict.fromkeys(["0", "1", "2", "3"], "no-payload") and built["from_cache"] == []
    assert read["built"] == {} and read["from_cache"] == [0, 1, 2, 3]
    assert [layer["origin"] for layer in starts[0]["audit"]["layers"]] == ["checkpoint"] * 4
    assert [layer["origin"] for layer in starts[1]["audit"]["layers"]] == ["cache"] * 4
    assert "4 layers are built from the checkpoint (no-payload): [0, 1, 2, 3]" in starts[0]["log"]
    assert "4 of 4 layers read" in starts[1]["log"]


def test_a_full_hit_reads_the_bytes_that_are_not_experts(starts: list[dict[str, Any]]) -> None:
    sizes = {}
    for file in checkpoint().glob("*.safetensors"):
        content = file.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header.pop("__metadata__", None)
        sizes |= {name: one["data_offsets"][1] - one["data_offsets"][0] for name, one in header.items()}
    dense = sum(nbytes for name, nbytes in sizes.items() if ".ffn.experts." not in name)
    assert 0 < dense < sum(sizes.values()) / 2
    assert starts[0]["startup"]["checkpoint_bytes_read"] == {"target rest": sum(sizes.values())}
    assert starts[1]["startup"]["checkpoint_bytes_read"] == {"target rest": dense}


def test_both_tell_their_phases(starts: list[dict[str, Any]]) -> None:
    for one in starts:
        seconds = one["startup"]["seconds"]
        assert [name for name in phases.NAMES if seconds[name] is None] == ["draft rest"]
        assert sum(filter(None, seconds.values())) < one["startup"]["since_process_start"]
        assert "moet start-up: eligibility 0.0" in one["log"] and "moet start-up as JSON: {" in one["log"]


def main(model: str, out: str) -> None:
    """The child: generate, and write what the parent compares."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        quantization="moet_w2",
        load_format="moet",
        tokenizer_mode="deepseek_v4",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=2,
        block_size=256,
        kv_cache_memory_bytes=1 << 28,
        logprobs_mode="raw_logits",
        max_logprobs=-1,
    )
    talk = [[{"role": "user", "content": question}] for question in QUESTIONS]
    answers = llm.chat(talk, SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=-1), use_tqdm=False)
    outputs = [answer.outputs[0] for answer in answers]
    rows = [[row[token].logprob for token in sorted(row)] for output in outputs for row in output.logprobs]
    torch.save(
        {
            "tokens": [list(output.token_ids) for output in outputs],
            "answers": [output.text for output in outputs],
            "values": torch.tensor(rows, dtype=torch.float64),
        },
        out,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
