"""A server from start to stop, measured by a client: one configuration a run, one result file.

    python bench/serving.py --recipe FILE [--prefill N ...] [--budget SECONDS] [--hold-to GIB] [--out FILE]

Starts ``moet serve``, waits until it is ready, and measures over HTTP with prompts of random token ids: decode of
exactly 1,024 tokens by one request and by four, prefill of uncached prompts, a repeated prompt, then SIGTERM until no
process is left and the GPU's memory is free. Beside the client's times stand, in parts of their own, what the
server's logger said and how /metrics grew during each phase, power and PCIe traffic as NVML samples them, and what the
planner predicts for this very placement. runner/serving.schema.json says what is what. A phase that fails, and a
result that does not keep to the schema, end the run with 1; the result is written all the same.

A GEMM of a size that no step had yet may be compiled first, for seconds. So before a prompt ``warm_up_tail_N`` sends
one of just the N tokens that its last chunk will have; its whole chunks are as those of ``warm_up``. A card on which
others hold memory is refused before anything starts: what they compute there would be measured, too.

--hold-to takes the card's memory but for so many GiB before the server starts (hold_memory.py), and gives it back
after it: the server then lives in a card of that size, and runs out of memory where that card would.

Each phase has a limit, all of them together a budget, and the result file is written again after each: a run that is
cut short leaves what it had. Where the launcher's doctor refuses a machine that serves all the same (an overlay of
another Python), its words are kept under ``launcher_refused`` and the command that it rendered is run without it.

    MODEL_PATH, PORT, CACHE_ROOT, MOET_STORE_DIR, CUDA_VISIBLE_DEVICES  as for ``moet serve``

On a GPU with everything compiled: some three minutes a configuration. bench/recipes/h200-*.yaml need one H200.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import link_reads
import yaml
from prefill_progress import Progress
from runner.gauges import Gauges
from runner.output import unwritable
from serving_client import Client, decode, growth
from serving_memory import Held, Memory, gpu_memory, occupied
from serving_server import Server, kv_cache, logged, moet_command

from moet_w2 import cache_root, overrides, recipe_source
from moet_w2.doctor.subject import CUDA, device_kind
from moet_w2.planner.predict import of_recipe
from moet_w2.planner.settings import Settings
from moet_w2.recipe import Recipe, load

PROMPT, TOKENS, TOGETHER = 512, 1024, 4
WARM_UP, WARM_UP_TOKENS = 4096, 16
SHORT = 8192
"""Prompts up to this long are over before their progress says much."""
SETTLE_SECONDS = 2.0
SNAPSHOT_SECONDS = 1.5
"""Counters of ours come with a worker's snapshots, one a second: after this long they hold all that has been done."""
SEED = 1
SCHEMA = 1
"""Of the result; raised when a field changes its meaning."""
LIMITS = {"warm_up": 120.0, "decode": 150.0, "prefill": 300.0, "repeated": 60.0}
"""Seconds that a phase of each kind may take."""
STOP_SECONDS = 60.0
WORK = facts.ROOT / ".native" / "run" / "serving"
_FAILURES = (OSError, RuntimeError, ValueError, http.client.HTTPException)
"""What a server that is slow, wrong or gone ends a request with."""


class Run:
    """One configuration being measured.

    Attributes:
        result: everything so far; written by :meth:`keep`.
    """

    def __init__(
        self,
        server: Server,
        client: Client,
        gauges: Gauges,
        vocabulary: int,
        budget: float,
        out: Path | None,
        memory: Memory | None = None,
    ) -> None:
        self.server, self.client, self.gauges, self.vocabulary, self.out = server, client, gauges, vocabulary, out
        self.memory = memory
        self.deadline = time.perf_counter() + budget
        self.result: dict[str, Any] = {"benchmark": "serving", "schema": SCHEMA, "phases": {}}
        self._noise = random.Random(SEED)

    def prompt(self, tokens: int) -> list[int]:
        """Random token ids that no earlier prompt began with."""
        return [self._noise.randrange(3, self.vocabulary) for _ in range(tokens)]

    def phase(self, name: str, limit: float, work: Callable[[float], dict[str, Any]]) -> None:
        """Run one phase, and keep what it gave, or why it gave nothing.

        Args:
            name: of the phase.
            limit: seconds that it may take.
            work: gives the parts of the phase that the client knows, within so many seconds.
        """
        left = self.deadline - time.perf_counter()
        if left < 5 or not self.client.healthy():
            self.result["phases"][name] = {"skipped": "no time was left" if left < 5 else "the server had ended"}
            return self.keep()
        before, said, began = self.client.metrics(), len(self.server.text()), time.perf_counter()
        with self.gauges.phase() as seen:
            try:
                measured = work(min(limit, left))
            except _FAILURES as error:
                measured = {"error": f"{type(error).__name__}: {error}"[:2000]}
            measured["phase_seconds"] = time.perf_counter() - began
        measured["gpu"] = seen()
        time.sleep(SNAPSHOT_SECONDS)  # or the end of this phase would count into the next one
        try:
            measured["counters"] = growth(before, self.client.metrics())
        except _FAILURES as error:
            measured["counters"] = {"error": str(error)}
        measured["logger"] = logged(self.server.text()[said:])
        self.result["phases"][name] = measured
        self.mark_memory(name)
        print(f"{name}: {json.dumps({k: v for k, v in measured.items() if k != 'counters'})}", flush=True)
        self.keep()

    def decode(self, requests: int, tokens: int) -> Callable[[float], dict[str, Any]]:
        """Concurrent completions, each of its own prompt."""

        def work(limit: float) -> dict[str, Any]:
            prompts = [self.prompt(PROMPT) for _ in range(requests)]
            return {"client": decode(self.client.complete_together(prompts, tokens, limit))}

        return work

    def prefill(self, prompt: list[int]) -> Callable[[float], dict[str, Any]]:
        """One token after a prompt."""

        def work(limit: float) -> dict[str, Any]:
            with Progress(self.client.metrics) as seen:
                done = self.client.complete(prompt, 1, limit)
                if len(prompt) > SHORT:
                    time.sleep(SETTLE_SECONDS)  # vLLM adds the tokens once the first one is out
            seconds = done.first_token_seconds
            client = {
                "prompt_tokens": done.prompt_tokens,
                "first_token_seconds": seconds,
                "prompt_tokens_per_s": len(prompt) / seconds,
            }
            return {"client": client} | ({"progress": seen.result()} if len(prompt) > SHORT else {})

        return work

    def mark_memory(self, moment: str) -> None:
        """Keep what the server has of the card's memory at a moment of the run: MiB, now and at most since the last."""
        if self.memory is not None and (found := self.memory.mark()) is not None:
            self.result.setdefault("own_gpu_memory_mib", {})[moment] = found

    def failed(self) -> list[str]:
        """Names of the phases that ended in an error."""
        return [name for name, phase in self.result["phases"].items() if "error" in phase]

    def keep(self) -> None:
        """Write the result file as it is now."""
        self.result["exercised"] = exercised(self.result["phases"])
        if self.out is not None:
            facts.write(self.out, self.result)


def exercised(phases: dict[str, Any]) -> dict[str, int]:
    """The longest prompt that was answered, as the server counted it, and the most requests at once."""
    prompts, requests = [0], [0]
    for client in (phase["client"] for phase in phases.values() if "client" in phase):
        counted = client["prompt_tokens"]
        prompts += counted if isinstance(counted, list) else [counted]
        requests.append(client.get("requests", 1))
    return {"longest_prompt_tokens": max(prompts), "most_requests": max(requests)}


def violations(result: dict[str, Any]) -> list[str]:
    """Where a result does not keep to its schema; nothing is said where there is no jsonschema to tell."""
    try:
        from runner import schema
    except ImportError as error:
        print(f"not held against its schema here ({error}); `bench/cli.py lint` does it", flush=True)
        return []
    return schema.violations({"provenance": facts.provenance(), **result})


def faults(result: dict[str, Any]) -> list[str]:
    """What ends a run with 1, a line each: it broke off, a phase failed, or the result does not keep to its schema."""
    found = [f"broke off: {result['error']}"] if "error" in result else []
    for name, phase in result["phases"].items():
        if "error" in phase:
            found.append(f"failed: {name}: {phase['error'][:300]}")
    return found + [f"not as runner/serving.schema.json says: {line}" for line in violations(result)]


def audit(moet: list[str], path: Path, recipe: Path) -> dict[str, Any]:
    """What ``moet audit check`` says, and the facts that it judged."""
    done = subprocess.run(
        [*moet, "audit", "check", str(path), "--recipe", str(recipe)], capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = {"passes": done.returncode == 0, "said": (done.stdout + done.stderr).strip()[-2000:]}
    if path.is_file():
        document = json.loads(path.read_text())
        kept = ("state", "device", "mapped_bytes", "w2_bytes", "redundant_gpu_w2_bytes", "correction", "serving")
        found |= {key: document.get(key) for key in kept}
        found["pages_by_node"] = {
            layer["key"]: layer["host"]["pages_by_node"] for layer in document["layers"] if layer["host"]
        }
    startup = path.with_suffix(".startup.json")
    if startup.is_file():
        found["startup"] = json.loads(startup.read_text())
    return found


def without_speculation(recipe: Path, folder: Path) -> Path:
    """Write the recipe of the target alone, with as many mapped layers from its end, and give its file."""
    data = recipe_source.read(recipe).data
    config = json.loads((facts.ROOT / data["model"]["path"] / "config.json").read_text())
    layers, mapped = config["num_hidden_layers"], len(data["w2"]["mapped_layers"])
    keys = list(range(layers - mapped, layers))
    data["name"] += "-plain"
    data["engine"].pop("speculative-config", None)
    data["w2"]["mapped_layers"] = keys
    data["w2"]["correction"]["exclude_layers"] = keys
    data["expect"] |= {"w2_layers": layers, "mapped_layers": keys}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{data['name']}.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


def acceptance(counters: dict[str, float]) -> dict[str, float] | None:
    """Of speculation, from the growth of vLLM's counters; None where nothing was drafted."""
    drafts = counters.get("vllm:spec_decode_num_drafts_total", 0.0)
    if not drafts:
        return None
    accepted = counters.get("vllm:spec_decode_num_accepted_tokens_total", 0.0)
    return {"drafts": drafts, "accepted_tokens": accepted, "tokens_per_step": 1 + accepted / drafts}


def prediction(recipe: Recipe, config: dict[str, Any], run: Run, args: argparse.Namespace) -> dict[str, Any]:
    """What the planner makes of this placement on this machine, with what the workload decided.

    That is acceptance, of one request, and what a step read over the link. Experts are drawn at random where the server
    counted no such bytes.
    """
    from moet_w2.planner import predict
    from moet_w2.planner.machine import GIB, Machine
    from moet_w2.planner.placements import Assumptions

    phases = run.result["phases"]
    accepted = acceptance(phases.get(f"decode_1x{args.tokens}", {}).get("counters", {}))
    steps = accepted["tokens_per_step"] if accepted else 1.0
    reads = {
        count: link_reads.counted(phases.get(f"decode_{count}x{args.tokens}", {}).get("counters", {}))
        for count in (1, TOGETHER)
    }
    link_bytes = {count: nbytes for count, nbytes in reads.items() if nbytes is not None}
    total = (
        recipe.device.vram_gib
        if recipe.device and recipe.device.vram_gib
        else run.result["gpu_memory_mib"]["total"] / 1024
    )
    machine = Machine(int(total * GIB), 1 << 40, args.hbm_gbs, args.pcie_gbs, args.sm)
    prompts = [int(name.removeprefix("prefill_")) for name in phases if name.startswith("prefill_")]
    model, settings, mapped = predict.of_recipe(recipe, config)
    made = predict.predict(
        model,
        machine,
        settings,
        mapped,
        (1, TOGETHER),
        context=PROMPT + args.tokens // 2,
        prompts=prompts,
        given=Assumptions(tokens_per_step=steps),
        link_bytes=link_bytes,
    )
    return {
        "assumed": {
            "hbm_gbs": args.hbm_gbs,
            "link_gbs": args.pcie_gbs,
            "tokens_per_step": steps,
            "link_bytes_per_step": {str(count): nbytes for count, nbytes in link_bytes.items()},
        },
        "kv_tokens": made.memory.kv_tokens,
        "decode_tokens_per_s": {str(count): one.tokens_per_s for count, one in made.decode.items()},
        "step_seconds": {str(count): one.seconds for count, one in made.decode.items()},
        "prefill_seconds": {str(tokens): seconds for tokens, seconds in made.prefill_seconds.items()},
    }


def last_chunk(tokens: int, settings: Settings) -> int:
    """Tokens of the last chunk that the scheduler makes of so many prompt tokens."""
    return tokens % settings.chunk or settings.chunk


def left_of_repeated(tokens: int, settings: Settings) -> int:
    """Tokens of a repeated prompt that the prefix cache leaves to compute.

    It gives whole blocks, and never the last token (vllm/v1/core/kv_cache_manager.py, get_computed_blocks); with drafts
    it takes the prompt's last whole block back (kv_cache_coordinator.py, find_longest_cache_hit).
    """
    blocks = tokens // settings.block - 1 if settings.speculative else (tokens - 1) // settings.block
    return tokens - max(0, blocks) * settings.block


def warm_up_tail(run: Run, tokens: int) -> None:
    """A step of so many tokens, unless there was such a phase: what is compiled for it is then no prompt's time."""
    if (name := f"warm_up_tail_{tokens}") not in run.result["phases"]:
        run.phase(name, LIMITS["warm_up"], run.prefill(run.prompt(tokens)))


def measure(run: Run, args: argparse.Namespace) -> None:
    """Every phase between ready and stop."""
    run.phase("warm_up", LIMITS["warm_up"], run.prefill(run.prompt(min(WARM_UP, args.longest))))
    run.phase("warm_up_decode", LIMITS["warm_up"], run.decode(TOGETHER, WARM_UP_TOKENS))
    run.phase(f"decode_1x{args.tokens}", LIMITS["decode"], run.decode(1, args.tokens))
    run.phase(f"decode_{TOGETHER}x{args.tokens}", LIMITS["decode"], run.decode(TOGETHER, args.tokens))
    for number, tokens in enumerate(sorted(args.prefill)):
        warm_up_tail(run, last_chunk(tokens, args.settings))
        if number == 0:
            warm_up_tail(run, last_chunk(left_of_repeated(tokens, args.settings), args.settings))
        prompt = run.prompt(tokens)
        run.phase(f"prefill_{tokens}", LIMITS["prefill"], run.prefill(prompt))
        if number == 0:
            run.phase(f"repeated_{tokens}", LIMITS["repeated"], run.prefill(prompt))
    for name, phase in run.result["phases"].items():
        if "counters" in phase and (found := acceptance(phase["counters"])):
            run.result["phases"][name]["speculation"] = found


def main() -> None:
    parser = argparse.ArgumentParser(description="a server from start to stop, measured by a client")
    parser.add_argument("--recipe", type=Path, required=True, help="what to serve")
    parser.add_argument("--root", type=Path, default=facts.ROOT, help="where the recipe's relative paths start")
    parser.add_argument("--prefill", type=int, nargs="*", default=[32768], help="lengths of uncached prompts")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of each decode phase")
    parser.add_argument("--start-seconds", type=float, default=420.0, help="limit of the start")
    parser.add_argument("--budget", type=float, default=540.0, help="limit of everything but the stop")
    parser.add_argument(
        "--hbm-gbs", type=float, default=4213.7, help="for the prediction: what reads of device memory reach"
    )
    parser.add_argument(
        "--pcie-gbs", type=float, default=51.3, help="for the prediction: what reads over the link reach"
    )
    parser.add_argument("--sm", type=int, default=9, help="for the prediction: major compute capability")
    parser.add_argument(
        "--hold-to", type=float, metavar="GIB", help="leave the server no more of the card's memory than this"
    )
    parser.add_argument("--without-speculation", action="store_true", help="serve the recipe's target alone")
    parser.add_argument(
        "--default-caches",
        action="store_true",
        help="run the rendered command without the launcher, with every compiler's cache where it is by default",
    )
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    if args.out is not None and (found := unwritable(args.out)):
        raise SystemExit(found)
    if args.without_speculation:
        args.recipe = without_speculation(args.recipe, WORK)
    recipe = load(args.recipe, args.root)
    here = overrides.read(os.environ)
    config = json.loads(((here.model_path or recipe.model_path) / "config.json").read_text())
    _, args.settings, _ = of_recipe(recipe, config)
    args.longest = recipe.expect.max_model_len - 1
    args.prefill = [tokens for tokens in args.prefill if tokens <= args.longest]
    gpu = (here.cuda_visible_devices or "0").partition(",")[0]
    if device_kind(recipe) == CUDA and (found := occupied(gpu)):
        raise SystemExit(found)
    work = WORK / recipe.name
    work.mkdir(parents=True, exist_ok=True)
    placed = here.audit_path or work / "audit.json"
    facts.provenance()  # may leave this process some of the GPU's memory, which is then not the server's
    try:
        held = Held(args.hold_to, gpu) if args.hold_to else None
    except RuntimeError as error:
        raise SystemExit(f"--hold-to: {error}") from None
    memory, moet = Memory(gpu), moet_command()
    caches = {cache.variable for cache in cache_root.JIT_CACHES} if args.default_caches else None
    environ = {name: value for name, value in os.environ.items() if name not in (caches or ())}
    environ["W2_AUDIT_PATH"] = str(placed)
    server = Server(moet, args.recipe.resolve(), environ, work / "log", args.root, caches)
    client = Client(here.host, here.port, here.served_model_name or recipe.model.served_name)
    gauges = Gauges(gpu)
    run = Run(server, client, gauges, config["vocab_size"], args.budget, args.out, memory)
    run.result |= {"configuration": recipe.name, "recipe_sha256": recipe.digest, "synthetic": recipe.model.synthetic}
    run.result["configured"] = {
        "admission_tokens": recipe.expect.max_model_len,
        "mapped_layers": list(recipe.w2.mapped_layers),
        "w2_layers": recipe.expect.w2_layers,
    }
    run.result["gauges"] = gauges.absent
    if held is not None:
        run.result["held"] = held.told
    # Whoever cuts this short must not leave a server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        ready = server.wait_until_ready(client.healthy, min(args.start_seconds, args.budget))
        run.result |= {"ready_seconds": ready, "launcher_refused": server.direct, "reported": kv_cache(server.text())}
        run.result["audit"] = audit(moet, placed, args.recipe)
        print(f"ready after {ready:.1f} s; audit passes: {run.result['audit']['passes']}", flush=True)
        run.mark_memory("ready")
        run.keep()
        measure(run, args)
        run.result["audit_at_end"] = audit(moet, placed, args.recipe)["passes"]
        run.result["metrics"] = client.metrics() if client.healthy() or not run.failed() else {}
    except _FAILURES as error:
        run.result["error"] = f"{type(error).__name__}: {error}"[-6000:]
        print(run.result["error"], flush=True)
    finally:
        run.result["stop"] = stop(run, gpu, memory.before)
        memory.close()
        if held is not None:
            held.close()
    run.result["gpu_memory_mib"] = memory.summary()
    if memory.total:
        try:
            run.result["prediction"] = prediction(recipe, config, run, args)
        except Exception as error:  # a prediction that fails must not cost a measurement
            run.result["prediction"] = {"error": f"{type(error).__name__}: {error}"[:500]}
    run.keep()
    print(json.dumps({k: v for k, v in run.result.items() if k in ("stop", "gpu_memory_mib", "prediction")}, indent=2))
    if found := faults(run.result):
        raise SystemExit("\n".join(found))


def stop(run: Run, gpu: str, before: int | None) -> dict[str, Any]:
    """SIGTERM in the middle of an answer, until no process is left and the GPU holds no more than it did."""
    serving = threading.Event()

    def be_served() -> None:
        try:
            run.client.complete(run.prompt(PROMPT), TOKENS, STOP_SECONDS, on_token=serving.set)
        except _FAILURES:
            serving.set()  # it is broken off, which is what this is for

    if "error" not in run.result:
        threading.Thread(target=be_served, daemon=True).start()
        serving.wait(STOP_SECONDS)
    began = time.perf_counter()
    gone = run.server.stop(STOP_SECONDS)
    freed = None
    while before is not None and time.perf_counter() - began < STOP_SECONDS:
        now = gpu_memory(gpu)
        if now is not None and now[0] <= before + 16:
            freed = time.perf_counter() - began
            break
        time.sleep(0.1)
    return {
        "while_serving": serving.is_set(),
        "processes_gone_seconds": gone,
        "gpu_memory_free_seconds": freed,
        "status": run.server.process.returncode,
    }


if __name__ == "__main__":
    main()
