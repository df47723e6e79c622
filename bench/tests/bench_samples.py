"""A small checkout with a served configuration, for the tests of bench/cli.py."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import facts  # noqa: E402
from runner.library import Library  # noqa: E402

HARDWARE = {"cpu": "Some CPU", "cores": 16, "memory_gib": 125.8, "gpu": "NVIDIA H200"}
PROVENANCE = {
    "time": "2026-01-02T03:04:05Z",
    "command": "python bench/serving.py --recipe h200-300k.yaml",
    "commit": "a" * 40,
    "dirty": False,
    "hardware": HARDWARE,
    "versions": {"python": "3.11.7", "torch": None},
}
LOGGER: dict[str, Any] = {
    "prompt_tokens_per_s": [51.0, 3000.0],
    "generation_tokens_per_s": [99.0],
    "prefill": [],
    "mean_acceptance_length": [],
}
GPU = {
    "samples": 9,
    "power_watts": {"mean": 412.4, "most": 500.0},
    "energy_joules": 1000.0,
    "busy_percent": {"mean": 71.0, "most": 90.0},
    "pcie_to_gpu_gb_per_s": {"mean": 31.2, "most": 48.0},
    "pcie_from_gpu_gb_per_s": {"mean": 0.1, "most": 0.2},
    "link": {"generation": 5, "width": 16},
}


def decode(requests: int, rate: float) -> dict[str, Any]:
    """A decode phase."""
    client = {
        "requests": requests,
        "tokens": [1024] * requests,
        "prompt_tokens": [512] * requests,
        "first_token_seconds": [0.2] * requests,
        "seconds": 10.0,
        "decode_tokens_per_s": rate,
        "tokens_per_s": rate * 0.9,
        "distinct_tokens": 900,
    }
    return phase(client) | {"speculation": {"drafts": 10.0, "accepted_tokens": 15.0, "tokens_per_step": 2.5}}


def prefill(tokens: int, seconds: float, hits: float = 0.0) -> dict[str, Any]:
    """A prefill phase."""
    counters = {"vllm:prefix_cache_queries_total": float(tokens), "vllm:prefix_cache_hits_total": hits}
    client = {"prompt_tokens": tokens, "first_token_seconds": seconds, "prompt_tokens_per_s": tokens / seconds}
    return phase(client) | {"counters": counters}


def phase(client: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({"client": client, "phase_seconds": 11.0, "counters": {}, "logger": LOGGER, "gpu": GPU})


def served(name: str = "h200-300k", mapped: tuple[int, ...] = (43, 44, 45), rate: float = 90.0) -> dict[str, Any]:
    """A whole serving result of a recipe of this checkout, without its digest."""
    return {
        "provenance": copy.deepcopy(PROVENANCE),
        "benchmark": "serving",
        "schema": 1,
        "configuration": name,
        "recipe_sha256": Library(ROOT).digest_now(name),
        "synthetic": True,
        "configured": {"admission_tokens": 300000, "mapped_layers": list(mapped), "w2_layers": 46},
        "reported": {"kv_cache_tokens": 100000 * (1 + len(mapped)), "kv_cache_gib": 7.25},
        "exercised": {"longest_prompt_tokens": 250000, "most_requests": 4},
        "ready_seconds": 80.0,
        "launcher_refused": None,
        "audit": {"passes": True, "serving": {"seconds": {"planes": 15.0, "graphs": 25.0, "publish": None}}},
        "audit_at_end": True,
        "phases": {
            "decode_1x1024": decode(1, rate),
            "decode_4x1024": decode(4, 2 * rate),
            "prefill_32768": prefill(32768, 4.0),
            "prefill_250000": prefill(250000, 50.0),
            "repeated_32768": prefill(32768, 0.1, hits=32512.0),
            "prefill_400000": {"skipped": "no time was left"},
            "prefill_300000": {"error": "TimeoutError: slow", "phase_seconds": 300.0},
        },
        "metrics": {"vllm:num_requests_running": 0.0},
        "gauges": None,
        "stop": {"while_serving": True, "processes_gone_seconds": 3.0, "gpu_memory_free_seconds": 3.1, "status": 0},
        "prediction": {"kv_tokens": 390000, "decode_tokens_per_s": {"1": 99.0, "4": 170.0}},
        "gpu_memory_mib": {"before": 46000, "peak": 143000, "total": 143771, "own_peak": 97000},
        "own_gpu_memory_mib": {"ready": {"now": 96000, "most": 97000}, "decode_1x1024": {"now": 96256, "most": 96256}},
        "held": {"to_gib": 95.0, "held_mib": 45996, "free_mib": 97280},
    }


def checkout(folder: Path, *documents: dict[str, Any]) -> Library:
    """A folder without git that holds this checkout's recipes and boxes, and these results, sealed."""
    for part in ("recipes", "boxes"):
        (folder / "bench" / part).mkdir(parents=True)
        for path in (ROOT / "bench" / part).glob("*.yaml"):
            (folder / "bench" / part / path.name).write_bytes(path.read_bytes())
    (folder / "bench" / "results").mkdir()
    for name in ("kernels_h200.json", "kernels_mapped_h200.json", "host_memory_h200.json"):
        (folder / "bench" / "results" / name).write_bytes((ROOT / "bench" / "results" / name).read_bytes())
    for number, document in enumerate(documents):
        store(folder, facts.sealed(document), f"serving_{number}.json")
    return Library(folder)


def store(folder: Path, document: dict[str, Any], name: str = "serving_0.json") -> None:
    (folder / "bench" / "results" / name).write_text(json.dumps(document, indent=2) + "\n")
