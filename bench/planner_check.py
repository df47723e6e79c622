"""The planner's predictions beside what servers did, on one machine.

    python bench/planner_check.py --recipes FOLDER [--hbm-gbs N] [--pcie-gbs N] [--out FILE] RESULT...

RESULT are files of bench/serving.py. Each is predicted twice: with the planner's constants as they are, and with those
that the first file gives (memory that context, graphs and step take; fixed time of a layer). The first file then fits
by construction, so what counts is the others: with other mapped layers, and with four requests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import facts

from moet_w2 import recipe as recipes
from moet_w2.planner import predict
from moet_w2.planner.calibrate import Measured, calibrated
from moet_w2.planner.costs import MEASURED_HBM_GBS
from moet_w2.planner.machine import GIB, Machine
from moet_w2.planner.model import Model
from moet_w2.planner.placements import DEFAULT, Assumptions
from moet_w2.planner.settings import Settings

REQUESTS = {"1": "decode_1x", "4": "decode_4x"}
HBM_GBS, LINK_GBS = MEASURED_HBM_GBS, 51.3
"""What plain reads reach on the H200 that the planner's kernel times are from: kernels_h200.json and
kernels_mapped_h200.json in bench/results."""


class Server:
    """One result file with its recipe.

    Attributes:
        name: the configuration.
        measured: figures by name, as they are predicted.
        tokens_per_step: by number of requests.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.document = json.loads(path.read_text())
        self.name = self.document["configuration"]
        loaded = recipes.load(folder / f"{self.name}.yaml")
        self.model: Model
        self.settings: Settings
        self.mapped: tuple[int, ...]
        self.model, self.settings, self.mapped = predict.of_recipe(loaded, _config(loaded.model_path))
        self.cuda_bytes = int(loaded.device.vram_gib * GIB) if loaded.device and loaded.device.vram_gib else 0
        self.measured: dict[str, float] = {"KV tokens": self.document["reported"]["kv_cache_tokens"]}
        self.tokens_per_step: dict[str, float] = {}
        self.prompts: list[int] = []
        for name, phase in self.document["phases"].items():
            self._phase(name, phase)

    def _phase(self, name: str, phase: dict[str, Any]) -> None:
        client = phase.get("client", {})
        for requests, prefix in REQUESTS.items():
            if name.startswith(prefix) and client.get("decode_tokens_per_s"):
                self.measured[f"decode {requests}x, tokens/s"] = client["decode_tokens_per_s"]
                self.tokens_per_step[requests] = phase.get("speculation", {}).get("tokens_per_step", 1.0)
        if name.startswith("prefill_") and client.get("first_token_seconds"):
            self.prompts.append(client["prompt_tokens"])
            self.measured[f"prefill of {client['prompt_tokens']}, s"] = client["first_token_seconds"]

    def seen(self) -> Measured:
        """What the constants are solved for from."""
        return Measured(
            int(self.document["reported"]["kv_cache_gib"] * GIB),
            self.measured["decode 1x, tokens/s"],
            self.tokens_per_step["1"],
        )

    def predicted(self, machine: Machine, given: Assumptions) -> dict[str, float]:
        """The same figures as the planner gives them."""
        found: dict[str, float] = {}
        for requests, per_step in self.tokens_per_step.items():
            made = predict.predict(
                self.model,
                machine,
                self.settings,
                self.mapped,
                (int(requests),),
                context=1024,
                prompts=self.prompts,
                given=replace(given, tokens_per_step=per_step),
            )
            found["KV tokens"] = made.memory.kv_tokens
            found[f"decode {requests}x, tokens/s"] = made.decode[int(requests)].tokens_per_s
            found |= {f"prefill of {tokens}, s": seconds for tokens, seconds in made.prefill_seconds.items()}
        return found


def compare(servers: Sequence[Server], hbm_gbs: float, link_gbs: float) -> dict[str, Any]:
    """Measured and predicted figures of every server, and the constants that the first one gives."""
    first = servers[0]
    machines = [Machine(each.cuda_bytes, 1 << 40, hbm_gbs, link_gbs, sm=9) for each in servers]
    given = calibrated(first.model, machines[0], first.settings, first.mapped, first.seen())
    rows = []
    for each, machine in zip(servers, machines, strict=True):
        as_it_is, with_constants = each.predicted(machine, DEFAULT), each.predicted(machine, given)
        for what, measured in each.measured.items():
            if what in as_it_is:
                rows.append(
                    {
                        "configuration": each.name,
                        "what": what,
                        "measured": measured,
                        "predicted": as_it_is[what],
                        "off_by": as_it_is[what] / measured - 1,
                        "predicted_with_constants": with_constants[what],
                        "off_by_with_constants": with_constants[what] / measured - 1,
                    }
                )
    return {
        "constants_from": first.name,
        "constants": {
            "runtime_gib": given.runtime_bytes / GIB,
            "layer_us": given.costs.layer_us,
            "step_us": given.costs.step_us,
        },
        "assumed": {"hbm_gbs": hbm_gbs, "link_gbs": link_gbs},
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    """The comparison for a person."""
    lines = [f"{'configuration':<16}{'what':<24}{'measured':>12}{'planner':>12}{'off by':>9}{'with constants':>16}"]
    for row in found["rows"]:
        lines.append(
            f"{row['configuration']:<16}{row['what']:<24}{row['measured']:>12,.1f}{row['predicted']:>12,.1f}"
            f"{row['off_by']:>+9.1%}{row['predicted_with_constants']:>16,.1f}{row['off_by_with_constants']:>+9.1%}"
        )
    return "\n".join([*lines, "", f"constants, from {found['constants_from']}: {found['constants']}"])


def _config(folder: Path) -> dict[str, Any] | None:
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description="the planner's predictions beside what servers did")
    parser.add_argument("results", type=Path, nargs="+", help="the first gives the constants")
    parser.add_argument("--recipes", type=Path, default=facts.ROOT / "bench" / "recipes", help="their folder")
    parser.add_argument("--hbm-gbs", type=float, default=HBM_GBS, help="read rate of device memory")
    parser.add_argument("--pcie-gbs", type=float, default=LINK_GBS, help="read rate of mapped memory")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    found = compare([Server(path, args.recipes) for path in args.results], args.hbm_gbs, args.pcie_gbs)
    print(table(found))
    if args.out:
        facts.write(args.out, {"benchmark": "planner_check", **found})


if __name__ == "__main__":
    main()
