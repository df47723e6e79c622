"""The real engine on the demo checkpoint, stock experts, on this processor and on lesser ones.

A limit on the instruction set holds for a whole process, so every run is a process of its own: this file executed as a
script. The engine runs in that process (no API server), answers what the checkpoint was trained on, and computes
log-probabilities of a long prompt, which passes every layer kind, the indexer included.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LONG, SHORT = 2200, 300
"""Prompt tokens: beyond 4 * 512 the indexer chooses, beyond 1024 a prompt takes several chunks."""

MEAN, MOST, SHARE = 0.08, 1.0, 0.99
"""Log-probabilities of prompt tokens may differ by MEAN on average, and by less than MOST in SHARE of all tokens.

The yardstick is what the same compiled kernels differ by with AMX tiles on and off: 0.031 on average, 0.35 at 99%. The
prompt's numbers cannot be foreseen (mean log-probability -9.4), and there small roundings show most.
"""

SUMS = ((12, 30), (58, 21), (7, 8))

pytestmark = pytest.mark.server


def checkpoint() -> Path:
    return Path(os.environ.get("MODEL_PATH") or REPOSITORY / "demo" / "checkpoint")


def run(tmp_path: Path, isa: str | None = None, reuse: bool = True) -> dict[str, Any]:
    """One engine in one process; ``reuse`` turns prefix caching and chunked prefill on or off."""
    from validation.local import engine_lock  # the child runs this file with another path

    out = tmp_path / f"{isa}-{reuse}.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    # Without compiled bytecode every run would spend 15 s on reading vLLM's sources.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = kept | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if isa is not None:
        environment["VLLM_MOE_W2_CPU_ISA"] = isa
    command = [sys.executable, __file__, str(checkpoint()), str(out), str(int(reuse))]
    with engine_lock():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "Using V2 Model Runner" in done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("native"))


def test_reuse_changes_nothing_but_rounding(native: dict[str, Any], tmp_path: Path) -> None:
    """Chunks and cached prefixes against one pass over the whole prompt.

    The compiled operations sum a row alike in every batch, so each token is the same. Plain matrix products are cut up
    by the number of rows: their sums round differently, and what the prompt leaves undecided may fall either way.
    """
    plain = run(tmp_path, reuse=False)
    assert native["cached"] > 0 and plain["cached"] == 0
    assert native["chunk"] < LONG <= plain["chunk"]
    assert native["answers"] == plain["answers"]
    assert alike(native, plain)
    if native["compiled"]:
        assert native["tokens"] == plain["tokens"]
        assert native["again"] == native["tokens"][-1]


def test_another_prompt_is_not_alike(native: dict[str, Any]) -> None:
    assert not alike(native, native | {"logprobs": native["logprobs"][::-1]})


def test_answers_are_right(native: dict[str, Any]) -> None:
    """What the other comparisons compare with is itself no nonsense."""
    for (a, b), answer in zip(SUMS, native["answers"], strict=True):
        assert str(a + b) in answer


@pytest.mark.parametrize("isa", ["avx512_bf16", "avx2"])
def test_lesser_processors_agree(native: dict[str, Any], isa: str, tmp_path: Path) -> None:
    if native["isa"] == isa or (isa == "avx512_bf16" and native["isa"] != "amx"):
        pytest.skip(f"this processor's own instruction set is {native['isa']}")
    lesser = run(tmp_path, isa)
    assert lesser["isa"] == isa
    assert lesser["compiled"] == (isa == "avx512_bf16")
    assert lesser["answers"] == native["answers"]
    assert alike(lesser, native)


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs give the prompt's tokens the same log-probabilities, within the bounds above."""
    differences = sorted(abs(a - b) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))
    assert len(differences) > LONG
    return statistics.mean(differences) < MEAN and differences[int(SHARE * len(differences))] < MOST


def main(model: str, out: str, reuse: bool) -> None:
    """The child: generate, and write what the parent compares."""
    from tokenizers import Tokenizer
    from vllm import LLM, SamplingParams

    from moet_w2 import config
    from moet_w2.cpu import capability

    encode = Tokenizer.from_file(f"{model}/tokenizer.json").encode
    text = " ".join(f"What is {a} + {b}? It is {a + b}." for a in range(40) for b in range(40))
    ids = encode(text, add_special_tokens=False).ids
    prompts = [{"prompt_token_ids": ids[:SHORT]}, {"prompt_token_ids": ids[:LONG]}]
    llm = LLM(
        model,
        tokenizer_mode="deepseek_v4",
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=2,
        max_num_batched_tokens=1024 if reuse else 4096,
        enable_chunked_prefill=reuse,
        enable_prefix_caching=reuse,
        block_size=256,
        kv_cache_memory_bytes=1 << 28,
    )
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    answers = llm.generate(prompts, greedy, use_tqdm=False)
    again = llm.generate(prompts[-1:], greedy, use_tqdm=False)[0]
    scores = llm.generate(prompts, scored, use_tqdm=False)
    questions = [[{"role": "user", "content": f"What is {a} + {b}?"}] for a, b in SUMS]
    talk = llm.chat(questions, SamplingParams(temperature=0, max_tokens=128), use_tqdm=False)
    found = capability.detect(config.load().cpu_isa)
    result = {
        "isa": found.isa,
        "compiled": capability.has_op("fp8_scaled_mm_cpu"),
        "chunk": llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens,
        "cached": again.num_cached_tokens or 0,
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "answers": [answer.outputs[0].text for answer in talk],
        "again": list(again.outputs[0].token_ids),
        "logprobs": [next(iter(entry.values())).logprob for score in scores for entry in score.prompt_logprobs[1:]],
    }
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
