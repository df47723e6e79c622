"""Tokens per second of llama.cpp on the model of bench/decode_rate.py, to stand beside it in one table.

    python bench/llama_rate.py --dir FOLDER [--layers N] [--on-cpu N ...] [--requests N ...] [--out FILE]

The same few layers of DeepSeek-V4-Flash at their real widths, written as a GGUF file with random weights by
llama_model.py: MXFP4 experts as in the checkpoint, Q8_0 where that has FP8, a KV cache in float16. llama.cpp has no
experts in mapped host memory; with ``--on-cpu N`` the first N layers are computed by the CPU, out of its own memory.
A step is one llama_decode with a random token of each request, and waiting for it; there is no sampling and no server,
which is less work than vLLM's steps are measured with.

Needs a package that wraps llama.cpp with architecture ``deepseek4`` and CUDA: cyllama-cuda12 (CPython 3.12, built for
compute capability 7.5, so the driver compiles its PTX for a later GPU first) beside nvidia-cuda-runtime-cu12 and
nvidia-cublas-cu12. Eight layers: 32 GB of disk and of GPU memory, about three minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import decode_rate
import facts
import llama_model

PROMPT, TOKENS, REPEATS = decode_rate.PROMPT, decode_rate.TOKENS, 3
BATCH = 2048
SEED = 1
PACKAGES = ("cyllama-cuda12", "cyllama")


def config(folder: Path, layers: int) -> dict[str, Any]:
    """The configuration of decode_rate's model."""
    decode_rate.write_model(folder, layers)
    return json.loads((folder / "config.json").read_text())


def side(layers_on_cpu: int) -> str:
    """Its name in the result."""
    return f"llama-{layers_on_cpu}-on-cpu"


class Engine:
    """One loaded model.

    Attributes:
        nbytes: of its weights, as llama.cpp counts them.
    """

    def __init__(self, llama: Any, path: Path, gpu_layers: int) -> None:
        self._llama = llama
        parameters = llama.LlamaModelParams()
        parameters.n_gpu_layers = gpu_layers
        self._model = llama.LlamaModel(str(path), parameters, verbose=False)
        self.nbytes = self._model.size

    def generate(self, count: int, tokens: int, vocabulary: int, noise: random.Random) -> tuple[float, float]:
        """Seconds of ``tokens`` tokens for each of ``count`` requests, and of the prompts with the first of them.

        Raises:
            SystemExit: the logits are not finite: the weights were read wrongly.
        """
        llama = self._llama
        parameters = llama.LlamaContextParams()
        parameters.n_ctx, parameters.n_batch = count * (PROMPT + TOKENS), BATCH
        parameters.n_seq_max = count
        context = llama.LlamaContext(self._model, parameters, verbose=False)
        batch = llama.LlamaBatch(n_tokens=BATCH, embd=0, n_seq_max=count)
        began = time.perf_counter()
        for request in range(count):
            for position in range(PROMPT):
                if batch.n_tokens == BATCH:
                    self._run(context, batch)
                batch.add(noise.randrange(3, vocabulary), position, [request], position == PROMPT - 1)
        self._run(context, batch)
        first = time.perf_counter() - began
        for position in range(PROMPT, PROMPT + tokens - 1):
            for request in range(count):
                batch.add(noise.randrange(3, vocabulary), position, [request], True)
            self._run(context, batch)
        whole = time.perf_counter() - began
        logits = context.get_logits_ith(-1)
        if not all(abs(value) < 1e30 for value in logits):
            raise SystemExit("the logits are not finite; the file does not hold what this llama.cpp reads")
        batch.close()
        context.close()
        return whole, first

    @staticmethod
    def _run(context: Any, batch: Any) -> None:
        context.decode(batch)
        context.synchronize()
        batch.clear()


def measure(llama: Any, path: Path, shape: dict[str, Any], on_cpu: int, args: argparse.Namespace) -> dict[str, Any]:
    """One placement: its rates for each number of requests.

    Raises:
        SystemExit: llama.cpp did not take every tensor of the file, or its logits are not finite.
    """
    began = time.perf_counter()
    engine = Engine(llama, path, args.layers + 1 - on_cpu)  # the output layer counts as one
    ready, noise, rates = time.perf_counter() - began, random.Random(SEED), {}
    if engine.nbytes != (written := sum(tensor.nbytes for tensor in llama_model.tensors(shape))):
        raise SystemExit(
            f"llama.cpp took {engine.nbytes:,} of {written:,} bytes of weights; llama_model.py fits another"
        )
    for count in args.requests:
        engine.generate(count, 8, shape["vocab_size"], noise)  # compiles and warms up
        pairs = [engine.generate(count, TOKENS, shape["vocab_size"], noise) for _ in range(args.repeats)]
        rates[str(count)] = decode_rate.summary(count, pairs)
    return {"ready_seconds": ready, "weight_bytes": engine.nbytes, "requests": rates}


def wrapper() -> tuple[Any, dict[str, str]]:
    """The wrapped llama.cpp, and what it is.

    Raises:
        SystemExit: it is not installed.
    """
    try:
        from cyllama.llama import llama_cpp
    except ImportError as error:
        raise SystemExit(f"llama.cpp cannot be loaded ({error}); see the head of {Path(__file__).name}") from None
    installed = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    llama_cpp.ggml_backend_load_all()
    backends = ", ".join(llama_cpp.ggml_backend_reg_names())
    return llama_cpp, {name: installed[name] for name in PACKAGES if name in installed} | {"backends": backends}


def main() -> None:
    parser = argparse.ArgumentParser(description="decode rate of llama.cpp on the model of decode_rate.py")
    parser.add_argument("--dir", type=Path, required=True, help="receives the model and loses it again")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--on-cpu", type=int, nargs="+", default=[0], help="layers on the CPU, one side for each")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--without-gpu", action="store_true", help="a llama.cpp without CUDA will do: a dry run")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    llama, what = wrapper()
    if not (llama.llama_supports_gpu_offload() or args.without_gpu):
        raise SystemExit(f"this llama.cpp has no GPU ({what['backends']}); see the head of {Path(__file__).name}")
    args.dir.mkdir(parents=True, exist_ok=True)
    shape, path = config(args.dir, args.layers), args.dir / "model.gguf"
    began = time.perf_counter()
    try:
        nbytes = llama_model.write(path, shape)
        print(f"wrote {nbytes:,} bytes in {time.perf_counter() - began:.0f} s", flush=True)
        sides = {}
        for on_cpu in args.on_cpu:
            sides[side(on_cpu)] = measure(llama, path, shape, on_cpu, args)
            print(side(on_cpu), json.dumps(sides[side(on_cpu)], indent=2), flush=True)
    finally:
        path.unlink(missing_ok=True)
    result = {"benchmark": "llama_rate", "layers": args.layers, "weights": "random", "tool": what, "kv_cache": "f16"}
    result |= {"prompt_tokens": PROMPT, "tokens": TOKENS, "repeats": args.repeats, "sides": sides}
    if args.out:
        facts.write(args.out, result)


if __name__ == "__main__":
    main()
