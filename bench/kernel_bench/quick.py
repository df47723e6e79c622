"""A short look at several builds of the kernels: are they right, and how fast is each GEMM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from moet_w2.kernels import cubins

from . import cases, chain, correctness, speed, timing, workload

TOKENS = (1, 2, 4, 5, 8, 16, 64, 256, 2048)
_MOST_TOKENS = 2048


def builds(folder: Path | None, capability: tuple[int, int]) -> dict[str, chain.Find]:
    """The committed kernels, and one build for each folder below ``folder`` that holds cubins.

    Args:
        folder: builds as ``<name>/<source>.cubin``, or as scripts/kernels.sh writes them,
            ``<name>/cubins/<architecture>/<source>.cubin``; or None.
        capability: the GPU's, which picks the architecture.
    """
    found: dict[str, chain.Find] = {"committed": chain.committed}
    if folder is None:
        return found
    by_name: dict[str, dict[str, Path]] = {}
    for path in sorted({path.parent for path in folder.glob("**/*.cubin")}):
        of_arch = path.name.startswith("sm_")
        base = path.parent.parent if of_arch else path
        name = str(base.relative_to(folder)) if base != folder else folder.name
        by_name.setdefault(name, {})[path.name if of_arch else ""] = path
    for name, paths in by_name.items():
        arch = "" if "" in paths else cubins.architecture(capability, list(paths))
        if arch is not None:
            found[name] = chain.from_folder(paths[arch])
    if len(found) == 1:
        raise SystemExit(f"{folder} holds no cubin for compute capability {capability}; see quick.py for the layout")
    return found


def measure(folder: Path | None, tokens: tuple[int, ...] = TOKENS, repeats: int = 12) -> dict[str, Any]:
    """Judge some 40 cases, then time both GEMMs, for every build."""
    finds = builds(folder, torch.cuda.get_device_capability())
    failures: dict[str, list[str]] = {name: [] for name in finds}
    errors: dict[str, float] = dict.fromkeys(finds, 0.0)
    chosen = [
        case for case in cases.generate(500)[::10] if case.tokens <= _MOST_TOKENS and case.geometry != cases.REAL[-1]
    ]
    for case in chosen:
        prepared = correctness.prepare(case)
        for name, find in finds.items():
            verdict = correctness.judge(prepared, find)
            errors[name] = max(errors[name], verdict.error)
            failures[name] += [f"{case}: {failure}" for failure in verdict.failures]
    for name in finds:
        print(f"{name}: {len(chosen)} cases, {len(failures[name])} failures, largest error {errors[name]:.2e}")
        for line in failures[name][:5]:
            print(f"    {line}")
    correctness.weights.cache_clear()
    layers = workload.random_layers()
    reader = timing.Reader(layers)
    print(f"reads {reader.ceiling:.0f} GB/s, by blocks and order: {_rounded(reader.gb_per_s)}")
    records = []
    width = max(map(len, finds))
    print(f"{'build':{width}}  {speed.HEADER}")
    for count in tokens:
        for name, find in finds.items():
            calls = workload.chains(count, layers, find=find)
            records.append({"build": name} | speed.record(calls, layers, reader, repeats, compare=name == "committed"))
            print(f"{name:{width}}  ", end="")
            speed.print_record(records[-1])
    return {
        "cases": len(chosen),
        "failed": sum(map(len, failures.values())),
        "failures": failures,
        "largest_error": errors,
        "read_gb_per_s": {"ceiling": reader.ceiling, "by_blocks_and_order": reader.gb_per_s},
        "tokens": records,
    }


def _rounded(rates: dict[str, float]) -> dict[str, int]:
    return {way: round(rate) for way, rate in rates.items()}
