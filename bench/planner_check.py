"""The planner's predictions beside what servers did, on one machine.

    python bench/planner_check.py --recipes FOLDER [--hbm-gbs N] [--pcie-gbs N] [--out FILE] RESULT...

RESULT are files of bench/serving.py. Each is predicted twice: with the planner's constants as they are, and with those
that the first file gives (memory that context, graphs and step take; fixed time of a layer; launches of a layer in a
chunk of prefill, from the first token after the short prompt of its decode). Its KV cache and the decode rate of one
request then fit by construction, so what counts is all else: four requests, long prompts, and the other files, with
other mapped layers. A figure that the planner's own constants were fitted to is marked, too.

What the workload decided is taken from the result, for both: tokens that a step gave, routings that found FP4, and
bytes that a step read over the link. Those are counted exactly (moet_mapped_read_bytes_total). A result without that
counter leaves NVML's samples of PCIe traffic, with protocol overhead in them (bench/link_reads.py); table and file say
where each number is from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import facts
import link_reads

from moet_w2 import recipe as recipes
from moet_w2.planner import predict, speed
from moet_w2.planner.calibrate import Measured, calibrated
from moet_w2.planner.costs import MEASURED_HBM_GBS
from moet_w2.planner.machine import GIB, Machine
from moet_w2.planner.model import Model
from moet_w2.planner.placements import DEFAULT, Assumptions
from moet_w2.planner.settings import Settings
from moet_w2.planner.speed import Load

REQUESTS = {"1": "decode_1x", "4": "decode_4x"}
COUNTED = "counted exactly"
SAMPLED = "sampled by NVML, protocol overhead included and scaled off"
RANDOM = "experts drawn at random"
FITTED = {
    "b6959e5f3b9cd28bb79ae4c10dc94199c1d6a9d71fa4744e4972f0a723f1a53d": ("decode 1x, tokens/s",),
    "4b60cb1bc3c8f52593c6ba18a5de0cf831228327f172af4d2715754688679725": ("prefill of 250000, s",),
}
"""Figures that constants of planner/costs.py were fitted to, by the digest of their result file: h200-resident and
h200-300k of 2026-12-01. Of the 250,000 tokens it was how they went on, not the time of the first token. For a later
result of the same configuration all are checks."""
HBM_GBS, LINK_GBS = MEASURED_HBM_GBS, 51.3
"""What plain reads reach on the H200 that the planner's kernel times are from: kernels_h200.json and
kernels_mapped_h200.json in bench/results."""


class Server:
    """One result file with its recipe.

    Attributes:
        name: the configuration.
        changed: whether the recipe is no longer the one that was served. Its memory settings are not known then, so
            nothing is said of KV tokens, and no constant of memory is solved for.
        measured: figures by name, as they are predicted.
        tokens_per_step: by number of requests.
        correction_hits: share of routings that found FP4, by number of requests; absent where nothing was corrected.
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
        self.changed = self.document.get("recipe_sha256", loaded.digest) != loaded.digest
        self.measured: dict[str, float] = {}
        if not self.changed:
            self.measured["KV tokens"] = self.document["reported"]["kv_cache_tokens"]
        self.tokens_per_step: dict[str, float] = {}
        self.correction_hits: dict[str, float] = {}
        self._decodes: dict[str, dict[str, Any]] = {}
        self.prompts: list[int] = []
        for name, phase in self.document["phases"].items():
            self._phase(name, phase)

    def _phase(self, name: str, phase: dict[str, Any]) -> None:
        client = phase.get("client", {})
        for requests, prefix in REQUESTS.items():
            if name.startswith(prefix) and client.get("decode_tokens_per_s"):
                self.measured[f"decode {requests}x, tokens/s"] = client["decode_tokens_per_s"]
                self.tokens_per_step[requests] = phase.get("speculation", {}).get("tokens_per_step", 1.0)
                self._decodes[requests] = phase
                counters = phase.get("counters", {})
                if routings := counters.get("moet_correction_routings_total"):
                    self.correction_hits[requests] = counters.get("moet_correction_hits_total", 0.0) / routings
        if name.startswith("prefill_") and client.get("first_token_seconds"):
            self.prompts.append(client["prompt_tokens"])
            self.measured[f"prefill of {client['prompt_tokens']}, s"] = client["first_token_seconds"]

    def reads(self, requests: str, link_gbs: float) -> tuple[float | None, str]:
        """Bytes that a step read over the link, and where that is from; None where experts are drawn at random.

        Args:
            requests: their number.
            link_gbs: GB/s that plain reads reach.
        """
        if not self.mapped:
            return None, "no mapped layers"
        phase = self._decodes[requests]
        exact = link_reads.counted(phase.get("counters", {}))
        if exact is not None:
            return exact, COUNTED
        # Steps with all requests in them, which is what is predicted.
        steps = sum(phase["client"].get("tokens", ())) / (int(requests) * self.tokens_per_step[requests])
        roughly = link_reads.sampled(phase, steps, link_gbs)
        return roughly, RANDOM if roughly is None else SAMPLED

    def workload(self, requests: str, given: Assumptions) -> Assumptions:
        """The assumptions with what this phase decided.

        Args:
            requests: their number.
            given: everything else.
        """
        hits = self.correction_hits.get(requests, given.correction_hits)
        return replace(given, tokens_per_step=self.tokens_per_step[requests], correction_hits=hits)

    def seen(self, link_gbs: float) -> Measured:
        """What the constants are solved for from."""
        client = self._decodes["1"]["client"]
        prompt, first = (client[name][0] for name in ("prompt_tokens", "first_token_seconds"))
        return Measured(
            int(self.document["reported"]["kv_cache_gib"] * GIB),
            self.measured["decode 1x, tokens/s"],
            self.tokens_per_step["1"],
            link_bytes=self.reads("1", link_gbs)[0],
            prompt_tokens=prompt,
            first_token_seconds=first,
        )

    def predicted(self, machine: Machine, given: Assumptions) -> dict[str, float]:
        """The same figures as the planner gives them."""
        found: dict[str, float] = {}
        for requests in self.tokens_per_step:
            nbytes = self.reads(requests, machine.link_gbs or machine.hbm_gbs)[0]
            made = predict.predict(
                self.model,
                machine,
                self.settings,
                self.mapped,
                (int(requests),),
                context=1024,
                prompts=self.prompts,
                given=self.workload(requests, given),
                link_bytes={} if nbytes is None else {int(requests): nbytes},
            )
            found["KV tokens"] = made.memory.kv_tokens
            found[f"decode {requests}x, tokens/s"] = made.decode[int(requests)].tokens_per_s
            found |= {f"prefill of {tokens}, s": seconds for tokens, seconds in made.prefill_seconds.items()}
        return found


def compare(servers: Sequence[Server], hbm_gbs: float, link_gbs: float) -> dict[str, Any]:
    """Measured and predicted figures of every server, and the constants that the first one gives."""
    first = servers[0]
    machines = [Machine(each.cuda_bytes, 1 << 40, hbm_gbs, link_gbs, sm=9) for each in servers]
    workload = first.workload("1", DEFAULT)
    given = calibrated(first.model, machines[0], first.settings, first.mapped, first.seen(link_gbs), workload)
    if first.changed:
        given = replace(given, runtime_bytes=None)
    rows = []
    for each, machine in zip(servers, machines, strict=True):
        fitted = FITTED.get(each.document.get(facts.DIGEST, ""), ())
        as_it_is, with_constants = each.predicted(machine, DEFAULT), each.predicted(machine, given)
        for what, measured in each.measured.items():
            if what in as_it_is:
                rows.append(
                    {
                        "configuration": each.name,
                        "what": what,
                        "fitted": what in fitted,
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
            "runtime_gib": None if given.runtime_bytes is None else given.runtime_bytes / GIB,
            "layer_us": given.costs.layer_us,
            "step_us": given.costs.step_us,
            "prefill_launch_us": given.costs.prefill_launch_us,
        },
        "assumed": {"hbm_gbs": hbm_gbs, "link_gbs": link_gbs},
        "changed_since": [each.name for each in servers if each.changed],
        "workload": [_workload(each, requests, link_gbs) for each in servers for requests in each.tokens_per_step],
        "rows": rows,
    }


def _workload(server: Server, requests: str, link_gbs: float) -> dict[str, Any]:
    nbytes, source = server.reads(requests, link_gbs)
    load = Load(int(requests), 1024, correction_hits=server.correction_hits.get(requests))
    machine = Machine(server.cuda_bytes, 1 << 40, HBM_GBS, link_gbs, sm=9)
    return {
        "configuration": server.name,
        "requests": int(requests),
        "tokens_per_step": server.tokens_per_step[requests],
        "correction_hits": server.correction_hits.get(requests),
        "link_bytes_per_step": nbytes,
        "link_bytes_from": source,
        "link_bytes_at_random": speed.decode(server.model, machine, server.settings, server.mapped, load).link_bytes,
    }


def table(found: dict[str, Any]) -> str:
    """The comparison for a person."""
    lines = [f"{'configuration':<16}{'what':<24}{'measured':>12}{'planner':>12}{'off by':>9}{'with constants':>16}"]
    for row in found["rows"]:
        lines.append(
            f"{row['configuration']:<16}{row['what']:<24}{row['measured']:>12,.1f}{row['predicted']:>12,.1f}"
            f"{row['off_by']:>+9.1%}{row['predicted_with_constants']:>16,.1f}{row['off_by_with_constants']:>+9.1%}"
            + ("  the planner was fitted to it" if row["fitted"] else "")
        )
    lines += ["", f"constants, from {found['constants_from']}: {found['constants']}", ""]
    if found["changed_since"]:
        names = ", ".join(found["changed_since"])
        lines += [f"the recipe has changed since it was served, so KV tokens are left out: {names}", ""]
    for each in found["workload"]:
        nbytes, hits = each["link_bytes_per_step"], each["correction_hits"]
        lines.append(
            f"{each['configuration']:<16}{each['requests']}x: {each['tokens_per_step']:.2f} tokens a step and request"
            + ("" if hits is None else f", {hits:.1%} of routings found FP4")
            + ("" if nbytes is None else f", {nbytes / 1e6:,.0f} MB a step over the link")
            + f" ({each['link_bytes_from']}; at random {each['link_bytes_at_random'] / 1e6:,.0f} MB)"
        )
    return "\n".join(lines)


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
