"""Tokens per second of vLLM with its own MXFP4 experts and with ours, in one run on one machine.

    python bench/decode_rate.py [--layers N] [--mapped N ...] [--offloaded N ...] [--requests N ...] [--only SIDE]
                                [--out FILE]

Eight layers of DeepSeek-V4-Flash at their real widths, random weights: the rest of the model (attention, indexer,
shared expert, head) runs as it is, so the ratio is what the experts change of a whole step. Ours is measured with
each number of mapped layers that is asked for, the last ones of the model; stock as it is, and with vLLM's own UVA
offload of the experts of each number of layers that is asked for. That offload fills a budget of bytes from the first
layer on and cannot name others, so it is the first layers whose experts lie in host memory there. What really lies
there is asked of the driver, pointer by pointer: a side that is far from the bytes asked for ends the run.

Each side is an engine in a process of its own, one after the other, with CUDA graphs; requests are random tokens,
sampled at temperature 1 so that tokens of a batch differ, as their experts do. A decode rate counts the tokens after
the first: the time of a long generation less that of one token.

Needs a CUDA GPU with some 60 GB, and 10 minutes where nothing is compiled yet. Where a command may not run that
long, do it in several on the same machine, with the same other options: ``--only stock``, ``--only ours``, then
without ``--only``. What was measured lies in .native/decode-rate until a whole run has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import facts

from moet_w2 import checkpoint

STOCK, OURS = "stock", "ours"
EXPERT_PARAMETERS = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
"""Of vLLM's own experts, by the names that its offload takes."""
WORK = facts.ROOT / ".native" / "decode-rate"
PROMPT, TOKENS, REPEATS = 512, 256, 5
SEED = 1
LEAST_IN_HOST = 0.9
"""Of the bytes asked for: vLLM's weight processing may put the scales anew, which are a 17th of them."""
TOLERANCE = 1e-2
"""Of our layers against the reference, both with bfloat16 activations and outputs."""

# DeepSeek-V4-Flash where it differs from the demo checkpoint's config.json.
REAL = {
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 64,
    "index_n_heads": 64,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "num_hash_layers": 3,
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
}
ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_model_len": 4096,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "block_size": 256,
    "kv_cache_dtype": "fp8",
    "kv_cache_memory_bytes": 4 << 30,
    "enable_prefix_caching": False,
    "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]},
    "seed": SEED,
}
ENVIRONMENT = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the engine
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def write_model(folder: Path, layers: int, real: dict[str, Any] = REAL) -> None:
    """A model folder with a config.json and no weights.

    Args:
        folder: created if need be.
        layers: number of target layers.
        real: what differs from the demo checkpoint.
    """
    config = json.loads((facts.ROOT / "demo" / "checkpoint" / "config.json").read_text()) | real
    config["num_hidden_layers"] = layers
    # Two layers with a sliding window only, then compression by 4 and by 128 in turns.
    config["compress_ratios"] = [0 if layer < 2 else 128 if layer % 2 else 4 for layer in range(layers)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


@dataclass(frozen=True)
class Side:
    """What computes the experts, and how many layers' experts lie in host memory."""

    experts: str
    in_host: int = 0

    @property
    def name(self) -> str:
        if self.experts == OURS:
            return f"{OURS}-{self.in_host}-mapped"
        return f"{STOCK}-{self.in_host}-offloaded" if self.in_host else STOCK

    @classmethod
    def of(cls, name: str) -> Side:
        """The side of a name."""
        found = re.fullmatch(rf"{OURS}-(\d+)-mapped|{STOCK}(?:-(\d+)-offloaded)?", name)
        if found is None:
            raise SystemExit(f"--child {name}: is no side; sides are named by this program")
        return cls(OURS, int(found[1])) if found[1] else cls(STOCK, int(found[2] or 0))

    def host_bytes(self, model: Path) -> int:
        """Bytes of experts that lie in host memory: MXFP4 codes and scales, or W2 layers."""
        geometry = checkpoint.describe(model).geometry
        weights = 3 * geometry.experts * geometry.hidden * geometry.width
        return self.in_host * (geometry.nbytes if self.experts == OURS else weights // 2 + weights // 32)

    def engine(self, model: Path) -> dict[str, Any]:
        """Options of the engine that this side has alone."""
        if self.experts == OURS:
            return {"quantization": "moet_w2"}
        if not self.in_host:
            return {}
        budget = self.host_bytes(model) / 2**30
        return {"offload_backend": "uva", "cpu_offload_gb": budget, "cpu_offload_params": set(EXPERT_PARAMETERS)}


def sides(mapped: list[int], offloaded: list[int]) -> list[Side]:
    """Stock first: the others are held against it."""
    return [Side(STOCK), *(Side(STOCK, count) for count in offloaded), *(Side(OURS, count) for count in mapped)]


def environment(layers: int, side: Side) -> dict[str, str]:
    """The environment of a side's process: stock takes upstream's code paths, ours maps the last layers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    own = {"VLLM_MOE_W2": "0"} if side.experts == STOCK else {}
    if side.experts == OURS and side.in_host:
        own["VLLM_MOE_W2_MAPPED_LAYERS"] = ",".join(str(key) for key in range(layers - side.in_host, layers))
    return kept | ENVIRONMENT | own


def group(side: Side) -> str:
    """What ``--only`` calls it."""
    return "offloaded" if side.experts == STOCK and side.in_host else side.experts


def expert_memory(model: Any) -> list[tuple[int, int]]:
    """(address, bytes) of everything that experts are read from: of ours the whole layers, of stock the parameters."""
    found = []
    for module in model.modules():
        if type(module).__name__ != "RoutedExperts":
            continue
        if hasattr(module, "w2"):
            tensors = [module.w2.storage]
        else:
            tensors = [tensor for name, tensor in module.named_parameters(recurse=False) if name in EXPERT_PARAMETERS]
        found += [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.nbytes]
    return found


def in_host_memory(model: Any) -> int:
    """Bytes of :func:`expert_memory` that the driver says are host memory."""
    from cuda.bindings import runtime as cudart

    host = 0
    for address, nbytes in expert_memory(model):
        status, attributes = cudart.cudaPointerGetAttributes(address)
        if int(status) != 0:
            raise RuntimeError(f"cudaPointerGetAttributes: {status}")
        host += nbytes * (attributes.type == cudart.cudaMemoryType.cudaMemoryTypeHost)
    return host


def randomise(model: Any) -> int:
    """Fill vLLM's own expert weights in place; a start without weights leaves there what the memory held.

    Returns:
        bytes that were filled.
    """
    import torch

    filled = 0
    for module in model.modules():
        if type(module).__name__ != "RoutedExperts" or hasattr(module, "w2"):
            continue
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if not name.startswith(("w13_", "w2_")) or not tensor.is_contiguous():
                continue
            floating = tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
            if "scale" in name and floating:
                tensor.data.fill_(2.0**-6)
            elif "scale" in name:
                tensor.data.view(torch.uint8).fill_(127 - 6)  # UE8M0, in words of whatever size
            elif floating:
                continue  # a bias
            else:
                tensor.data.view(torch.uint8).random_(0, 256)
            filled += tensor.nbytes
    return filled


def backend(model: Any) -> str:
    """What computes vLLM's own experts."""
    layers = [module for module in model.modules() if type(module).__name__ == "RoutedExperts"]
    method = layers[-1].quant_method
    chosen = getattr(method, "mxfp4_backend", None)
    return getattr(chosen, "name", type(method).__name__)


def verify(model: Any) -> float:
    """Hold the first and the last layer of ours against the torch reference, as vLLM would call them.

    Returns:
        the larger relative error (norm over norm) of five tokens' outputs.
    """
    import torch

    from moet_w2 import reference
    from moet_w2.layer import W2Layer

    layers = [module for module in model.modules() if isinstance(getattr(module, "w2", None), W2Layer)]
    worst = 0.0
    for layer in (layers[0], layers[-1]):
        w2, device = layer.w2, layer.w2.storage.device
        made = torch.Generator(device).manual_seed(w2.key)
        x = torch.randn(5, w2.geometry.hidden, generator=made, device=device).mul(0.5).bfloat16()
        weights = torch.rand(5, layer.top_k, generator=made, device=device)
        ids = torch.rand(5, w2.geometry.experts, generator=made, device=device).argsort()[:, : layer.top_k].int()
        ids = ids.contiguous()
        found = layer.quant_method.apply(layer, x, weights, ids, None, None).float()
        expected = reference.moe(w2, x, weights, ids, layer.swiglu_limit).float()
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    return worst


def measure(model: str, side: Side, counts: list[int], repeats: int, engine: dict[str, Any]) -> dict[str, Any]:
    """One engine: its rates for each number of concurrent requests."""
    import random

    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(model, **engine, **side.engine(Path(model)))
    ready = time.perf_counter() - start
    found, asked = sum(llm.apply_model(in_host_memory)), side.host_bytes(Path(model))
    if not asked * LEAST_IN_HOST <= found <= asked:
        raise SystemExit(f"{side.name}: {found:,} bytes of experts lie in host memory, not {asked:,}")
    checked: dict[str, Any] = {"host_bytes": found, "host_bytes_asked": asked}
    if side.experts == STOCK:
        checked |= {"experts": llm.apply_model(backend)[0], "randomised_bytes": sum(llm.apply_model(randomise))}
    else:
        checked |= {"error_to_reference": max(llm.apply_model(verify))}
        if not checked["error_to_reference"] < TOLERANCE:
            raise SystemExit(f"{side.name}: the layers are {checked['error_to_reference']:.2e} off the reference")
    noise = random.Random(SEED)
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    seen: set[int] = set()

    def generate(count: int, tokens: int) -> float:
        prompts = [{"prompt_token_ids": [noise.randrange(3, vocabulary) for _ in range(PROMPT)]} for _ in range(count)]
        sampling = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begin
        for output in outputs:
            ids = output.outputs[0].token_ids
            if len(ids) != tokens:
                raise SystemExit(f"{side.name}: {len(ids)} tokens came instead of {tokens}")
            seen.update(ids)
        return seconds

    rates = {}
    for count in counts:
        generate(count, TOKENS)  # warms up whatever compiles late
        generate(count, 1)
        pairs = [(generate(count, TOKENS), generate(count, 1)) for _ in range(repeats)]
        rates[str(count)] = summary(count, pairs)
    # Weights that gave no finite numbers would repeat one token for ever.
    return {"ready_seconds": ready, **checked, "distinct_tokens": len(seen), "requests": rates}


def summary(count: int, pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Rates of one number of requests.

    Args:
        count: concurrent requests.
        pairs: seconds of a whole generation, and of one of a single token, for each repeat.
    """
    whole, first = (statistics.median(values) for values in zip(*pairs, strict=True))
    decode = statistics.median(full - one for full, one in pairs)
    return {
        "seconds": whole,
        "first_token_seconds": first,
        "step_ms": decode / (TOKENS - 1) * 1e3,
        "decode_tokens_per_s": count * (TOKENS - 1) / decode,
        "tokens_per_s": count * TOKENS / whole,
    }


def compare(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Every side of ours over stock, for each number of requests."""
    return {side: _over(rates, measured[STOCK]) for side, rates in measured.items() if side.startswith(OURS)}


def compare_in_host(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Every side of ours over stock with the experts of as many layers in host memory, where there is one."""
    found = {}
    for name, rates in measured.items():
        beside = Side(STOCK, Side.of(name).in_host).name
        if name.startswith(OURS) and beside != STOCK and beside in measured:
            found[name] = _over(rates, measured[beside])
    return found


def _over(rates: dict[str, Any], base: dict[str, Any]) -> dict[str, dict[str, float]]:
    names = ("decode_tokens_per_s", "tokens_per_s")
    return {
        count: {name: rates["requests"][count][name] / base["requests"][count][name] for name in names}
        for count in base["requests"]
    }


def run(side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """A side's measurement in a process of its own, or the one that an earlier command left."""
    result = WORK / f"{side.name}.json"
    if not result.exists():
        command = [sys.executable, __file__, "--child", side.name, "--repeats", str(args.repeats)]
        command += ["--requests", *map(str, args.requests)]
        subprocess.run(command, env=environment(args.layers, side), check=True)
    return json.loads(result.read_text())


def hold_options(layers: int, requests: list[int], repeats: int) -> None:
    """End where earlier commands measured sides with other options: a result must not mix the two."""
    path, options = WORK / "options.json", {"layers": layers, "requests": requests, "repeats": repeats}
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(options))
    elif (found := json.loads(path.read_text())) != options:
        raise SystemExit(f"{WORK} holds sides measured with {found}, not {options}; remove it, or give those")


def main() -> None:
    parser = argparse.ArgumentParser(description="decode rate, vLLM's own experts against ours")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mapped", type=int, nargs="+", default=[0], help="mapped layers of ours, one side for each")
    parser.add_argument(
        "--offloaded", type=int, nargs="*", default=[], help="layers of stock whose experts are offloaded, likewise"
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", choices=(STOCK, "offloaded", OURS), help="measure this much only, for a later run")
    parser.add_argument("--out", type=Path, help="write a result file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measured = measure(str(WORK / "model"), Side.of(args.child), args.requests, args.repeats, ENGINE)
        (WORK / f"{args.child}.json").write_text(json.dumps(measured))
        return
    for count in (*args.mapped, *args.offloaded):
        if not 0 <= count <= args.layers:
            raise SystemExit(f"{count} layers in host memory of {args.layers}; ask for as many as there are, or fewer")
    hold_options(args.layers, args.requests, args.repeats)
    write_model(WORK / "model", args.layers)
    wanted = [side for side in sides(args.mapped, args.offloaded) if args.only in (None, group(side))]
    measured = {side.name: run(side, args) for side in wanted}
    print(json.dumps(measured, indent=2))
    if args.only:
        return
    result = {
        "benchmark": "decode_rate",
        "weights": "random; 43 layers in the real model",
        "layers": args.layers,
        "prompt_tokens": PROMPT,
        "tokens": TOKENS,
        "repeats": args.repeats,
        "engine": ENGINE,
        "sides": measured,
        "ours_over_stock": compare(measured),
        "ours_over_offloaded": compare_in_host(measured),
    }
    print(json.dumps({key: result[key] for key in ("ours_over_stock", "ours_over_offloaded")}, indent=2))
    if args.out:
        facts.write(args.out, result)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
