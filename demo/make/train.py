"""Train the demo model: python -m demo.make.train --help.

Each step quantises the float32 master weights as the checkpoint will hold them, experts as MXFP4 in even steps and
as 2 bits in odd ones, computes the gradient at those weights and applies it to the masters (straight-through).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from demo.make import data, evaluate, export, tokenizer
from demo.make.batches import BUCKETS, Batch, Steps
from demo.make.checkpoint import from_official, read
from demo.make.gradient import Gradient, inputs
from demo.make.model import Weights, computing_model, initial_weights, serve

BIAS_STEP = 1e-3


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of the trainer."""
    parser = argparse.ArgumentParser(prog="python -m demo.make.train", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint/, log.jsonl and metrics.json")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="end, with the learning rate at zero, by then")
    parser.add_argument("--pause-after", type=float, default=1e9, help="stop here after so many seconds, to be resumed")
    parser.add_argument("--pause-at", type=int, default=10**9, help="the same, after this step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full batch size")
    parser.add_argument("--short", action="store_true", help="only conversations without tools, for trials")
    parser.add_argument("--start-from", type=Path, help="official checkpoint to take the first weights from")
    parser.add_argument("--corpus", type=int, default=9000, help="conversations that the tokenizer is learnt from")
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--evaluate-count", type=int, default=256, help="held-out conversations of each kind")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw batches")
    parser.add_argument("--resume", type=Path, help="state file to go on from, if it exists; written at the end")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    return parser.parse_args(argv)


class Balance:
    """Keeps experts in use: nudges each router's selection bias toward equal load (the architecture's own means)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._counts: dict[str, torch.Tensor] = {}
        for name, module in model.named_modules():
            if name.endswith("mlp.gate") and hasattr(module, "e_score_correction_bias"):
                self._counts[name] = torch.zeros_like(module.e_score_correction_bias)
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str):
        def count(_module: torch.nn.Module, _inputs: object, output: tuple[torch.Tensor, ...]) -> None:
            chosen = output[2].flatten()
            self._counts[name].scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.float32))

        return count

    @torch.no_grad()
    def apply(self, masters: Weights) -> None:
        """Move the biases one step."""
        for name, counts in self._counts.items():
            masters[f"{name}.e_score_correction_bias"] += BIAS_STEP * torch.sign(counts.mean() - counts)

    def clear(self) -> None:
        """Start counting afresh."""
        for counts in self._counts.values():
            counts.zero_()


def rate_at(step: int, progress: float, peak: float) -> float:
    """Learning rate: 200 steps of warm-up, constant until 40% of the run, then linearly down to zero."""
    return peak * min(1.0, (step + 1) / 200, (1.0 - progress) / 0.6)


def learnt_names(masters: Weights) -> list[str]:
    """What the optimiser moves: not the hash tables, not the balanced biases, not the indexer.

    The indexer only ranks compressed entries and no gradient reaches it; below 2048 tokens every entry is taken.
    """
    skip = ("tid2eid", "e_score_correction_bias")
    return [name for name in masters if not name.endswith(skip) and ".indexer." not in name]


class Trainer:
    """Master weights, their optimiser and the computing model, advanced step by step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device: str = options.device
        first = initial_weights(options.seed)
        if options.start_from:
            first = from_official(read(options.start_from), two_bit=False)
        self.masters = {name: weight.to(self.device) for name, weight in first.items()}
        dtype = torch.bfloat16 if self.device.startswith("cuda") else torch.float32
        self.model = computing_model(dtype, self.device)
        self.balance = Balance(self.model)
        self.gradient = Gradient(self.model, self.device)
        names = learnt_names(self.masters)
        self.learnt = [self.masters[name] for name in names]
        places = dict(self.model.named_parameters())
        self._grads = [places[name].grad for name in names]
        for weight in self.learnt:
            weight.grad = torch.zeros_like(weight)
        fused = self.device.startswith("cuda")
        self.optimiser = torch.optim.AdamW(self.learnt, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
        self.step, self.seconds = 0, 0.0

    def clear(self) -> None:
        """Zero the computing model's gradients and the balance counters."""
        torch._foreach_zero_([p.grad for p in self.model.parameters()])
        self.balance.clear()

    def capture(self, batches: list[Batch]) -> None:
        """Record a graph for each batch shape."""
        serve(self.model, self.masters, two_bit=False)
        for batch in batches:
            self.gradient.capture(inputs(batch, 0.0))
        self.clear()

    def advance(self, batches: list[Batch], rate: float) -> torch.Tensor:
        """One step; returns the mean loss of an answer token."""
        serve(self.model, self.masters, two_bit=self.step % 2 == 1)
        count = sum(int(batch.learn.sum()) for batch in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            total += self.gradient.add(inputs(batch, 1.0 / count))
        torch._foreach_copy_([weight.grad for weight in self.learnt], self._grads)
        torch.nn.utils.clip_grad_norm_(self.learnt, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.balance.apply(self.masters)
        self.clear()
        self.step += 1
        return total

    def save(self, path: Path) -> None:
        """Everything needed to go on."""
        state = {"step": self.step, "seconds": self.seconds, "optimiser": self.optimiser.state_dict()}
        torch.save(state | {"masters": self.masters}, path)

    def load(self, path: Path) -> None:
        """Go on from a saved state."""
        state = torch.load(path, map_location=self.device)
        self.step, self.seconds = state["step"], state["seconds"]
        self.optimiser.load_state_dict(state["optimiser"])
        for name, weight in state["masters"].items():
            self.masters[name].copy_(weight)


def main(argv: list[str] | None = None) -> None:
    """Train, evaluate on the way, export the official checkpoint."""
    options = parse(argv)
    started = time.monotonic()
    checkpoint = options.out / "checkpoint"
    tokenizer.save(tokenizer.train(data.corpus(options.seed, options.corpus)), checkpoint)
    trainer = Trainer(options)
    if options.resume and options.resume.exists():
        trainer.load(options.resume)
    before = trainer.seconds
    buckets = BUCKETS[:1] if options.short else BUCKETS
    steps = Steps(checkpoint, options.seed, options.steps, options.scale, buckets)
    if options.device.startswith("cuda") and not options.eager:
        trainer.capture(steps[0])
    held_out = evaluate.HeldOut(checkpoint, options.evaluate_count)
    ahead = torch.utils.data.Subset(steps, range(trainer.step, options.steps))
    loader = DataLoader(ahead, batch_size=None, num_workers=options.workers)
    log = (options.out / "log.jsonl").open("a")

    def record(**entry: object) -> None:
        line = json.dumps({"step": trainer.step, **entry, "seconds": round(trainer.seconds, 1)})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    mean = torch.zeros((), device=options.device)
    for batches in loader:
        trainer.seconds = before + time.monotonic() - started
        progress = max(trainer.step / options.steps, trainer.seconds / options.max_seconds)
        paused = trainer.seconds - before > options.pause_after or trainer.step >= options.pause_at
        if progress >= 1.0 or paused:
            break
        rate = rate_at(trainer.step, progress, options.rate)
        mean += trainer.advance(batches, rate)
        if trainer.step % 50 == 0:
            record(loss=round(mean.item() / 50, 5), rate=round(rate, 6))
            mean.zero_()
        if trainer.step % options.evaluate_every == 0:
            record(held_out=held_out.both(trainer.model, trainer.masters))
    export.write(trainer.masters, checkpoint)
    trainer.seconds = before + time.monotonic() - started
    metrics = {"steps": trainer.step, "seed": options.seed, "held_out": held_out.both(trainer.model, trainer.masters)}
    record(final=metrics)
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    if options.resume:
        trainer.save(options.resume)


if __name__ == "__main__":
    main()
