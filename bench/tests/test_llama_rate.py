"""The GGUF file that llama.cpp is measured with, and the loop that measures it; without llama.cpp."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import decode_rate
import llama_model
import llama_rate

DEMO = json.loads((decode_rate.facts.ROOT / "demo" / "checkpoint" / "config.json").read_text())


def read(path: Path) -> tuple[dict, dict[str, tuple[tuple[int, ...], int, int]], bytes]:
    """(metadata, name -> (shape, type, offset), tensor data) of a GGUF file, after ggml's gguf.h."""
    data, at = path.read_bytes(), 0

    def take(form: str):
        nonlocal at
        values = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return values[0] if len(values) == 1 else values

    def text() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind: int):
        if kind == 9:
            items, many = take("I"), take("Q")
            return [value(items) for _ in range(many)]
        return text() if kind == 8 else take({4: "I", 6: "f", 7: "?"}[kind])

    assert take("4s") == b"GGUF" and take("I") == 3
    many, metadata, tensors = take("Q"), {}, {}
    for _ in range(take("Q")):
        key = text()
        metadata[key] = value(take("I"))
    for _ in range(many):
        name, dimensions = text(), take("I")
        shape = tuple(take("Q") for _ in range(dimensions))
        tensors[name] = (shape, take("I"), take("Q"))
    return metadata, tensors, data[-(-at // 32) * 32 :]


def test_a_model_is_written_as_gguf_lays_it_out(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    nbytes = llama_model.write(path, DEMO)
    metadata, tensors, data = read(path)
    assert len(data) == nbytes and metadata["general.architecture"] == "deepseek4"
    assert metadata["deepseek4.attention.compress_ratios"] == [0, 4, 128, 4]
    assert metadata["deepseek4.expert_count"] == 64 and metadata["deepseek4.rope.scaling.type"] == "yarn"
    listed = {tensor.name: tensor for tensor in llama_model.tensors(DEMO)}
    assert set(tensors) == set(listed) and "blk.0.ffn_gate_tid2eid.weight" in tensors
    assert "blk.0.exp_probs_b.bias" not in tensors and "blk.1.exp_probs_b.bias" in tensors
    assert "blk.2.indexer.proj.weight" not in tensors and "blk.3.indexer.proj.weight" in tensors
    ends = 0
    for name, (shape, kind, offset) in tensors.items():  # one after the other, aligned, nothing between
        assert shape == listed[name].shape and kind == listed[name].kind and offset == ends and offset % 32 == 0
        ends = -(-(offset + listed[name].nbytes) // 32) * 32
    shape, kind, offset = tensors["blk.0.ffn_down_exps.weight"]
    assert shape == (128, 256, 64) and kind == llama_model.MXFP4
    blocks = data[offset : offset + 17 * 1000]
    assert set(blocks[::17]) == {127 - 6} and len(set(blocks)) == 256
    experts = tensors["blk.0.ffn_gate_tid2eid.weight"]
    rows = struct.unpack_from("<12i", data, experts[2])
    assert all(0 <= each < 64 for each in rows) and len(set(rows[:6])) == 6


def test_experts_take_the_bytes_that_stock_offloads(tmp_path: Path) -> None:
    shape = llama_rate.config(tmp_path, 8)
    experts = sum(tensor.nbytes for tensor in llama_model.tensors(shape) if "_exps" in tensor.name)
    assert experts == decode_rate.Side("stock", 8).host_bytes(tmp_path)


class Llama:
    """The wrapper as far as the benchmark asks; every step is written down."""

    def __init__(self, nbytes: int, logit: float = 0.5) -> None:
        self.steps: list[list[tuple[int, int, bool]]] = []
        self.contexts: list[SimpleNamespace] = []
        self.loaded: list[tuple[str, int]] = []
        self.LlamaModelParams = self.LlamaContextParams = SimpleNamespace
        outer = self

        class Model:
            size = nbytes

            def __init__(self, path: str, parameters: SimpleNamespace, verbose: bool) -> None:
                outer.loaded.append((path, parameters.n_gpu_layers))

        class Context:
            def __init__(self, model: Model, parameters: SimpleNamespace, verbose: bool) -> None:
                outer.contexts.append(parameters)

            def decode(self, batch: Batch) -> None:
                outer.steps.append(list(batch.rows))

            def synchronize(self) -> None:
                return None

            def get_logits_ith(self, index: int) -> list[float]:
                return [logit] * 3

            def close(self) -> None:
                return None

        class Batch:
            def __init__(self, n_tokens: int, embd: int, n_seq_max: int) -> None:
                self.rows: list[tuple[int, int, bool]] = []

            @property
            def n_tokens(self) -> int:
                return len(self.rows)

            def add(self, token: int, position: int, sequences: list[int], logits: bool) -> None:
                self.rows.append((position, sequences[0], logits))

            def clear(self) -> None:
                self.rows.clear()

            def close(self) -> None:
                return None

        self.LlamaModel, self.LlamaContext, self.LlamaBatch = Model, Context, Batch


def test_a_generation_is_prompts_in_batches_and_then_one_token_of_each_a_step(tmp_path: Path) -> None:
    llama = Llama(sum(tensor.nbytes for tensor in llama_model.tensors(DEMO)))
    args = SimpleNamespace(layers=4, requests=[5], repeats=2)
    found = llama_rate.measure(llama, tmp_path / "m.gguf", DEMO, 1, args)
    assert llama.loaded == [(str(tmp_path / "m.gguf"), 4)]  # three of four layers and the output
    assert llama.contexts[-1].n_ctx == 5 * (512 + 256) and llama.contexts[-1].n_seq_max == 5
    sizes = [len(step) for step in llama.steps]
    assert sizes == [2048, 512] + [5] * 7 + ([2048, 512] + [5] * 255) * 2
    assert sum(logits for step in llama.steps[:2] for *_, logits in step) == 5
    assert llama.steps[-1] == [(512 + 254, request, True) for request in range(5)]
    assert set(found["requests"]) == {"5"} and found["requests"]["5"]["decode_tokens_per_s"] > 0


@pytest.mark.parametrize(("missing", "logit", "said"), [(1, 0.5, "llama.cpp took"), (0, float("nan"), "not finite")])
def test_weights_that_were_read_wrongly_end_the_run(tmp_path: Path, missing: int, logit: float, said: str) -> None:
    llama = Llama(sum(tensor.nbytes for tensor in llama_model.tensors(DEMO)) - missing, logit)
    with pytest.raises(SystemExit, match=said):
        llama_rate.measure(llama, tmp_path / "m.gguf", DEMO, 0, SimpleNamespace(layers=4, requests=[1], repeats=1))


def test_without_the_package_or_without_a_gpu_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["llama_rate.py", "--dir", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "cyllama", None)
    with pytest.raises(SystemExit, match="llama.cpp cannot be loaded"):
        llama_rate.main()
    cpu_only = SimpleNamespace(llama_supports_gpu_offload=lambda: False)
    monkeypatch.setattr(llama_rate, "wrapper", lambda: (cpu_only, {"backends": "CPU"}))
    with pytest.raises(SystemExit, match=r"has no GPU \(CPU\)"):
        llama_rate.main()
