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
from demo.make.batches import Batch, Steps
from demo.make.model import STORAGE, Weights, computing_model, hidden_states, initial_weights, serve

TRAINED = ("fp4", "fp8", "bf16", "f32")
BIAS_STEP = 1e-3


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of the trainer."""
    parser = argparse.ArgumentParser(prog="python -m demo.make.train", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint/, log.jsonl and metrics.json")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="end, with the learning rate at zero, by then")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full batch size")
    parser.add_argument("--corpus", type=int, default=9000, help="conversations that the tokenizer is learnt from")
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--evaluate-count", type=int, default=256, help="held-out conversations of each kind")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw batches")
    parser.add_argument("--resume", type=Path, help="state file to go on from, if it exists; written at the end")
    parser.add_argument("--compile", action="store_true", help="compile the decoder layers")
    return parser.parse_args(argv)


def answer_loss(model: torch.nn.Module, batch: Batch, device: str) -> tuple[torch.Tensor, int]:
    """Sum of the answer tokens' cross-entropy, and their number."""
    tokens, learn = batch.tokens.to(device), batch.learn.to(device)
    logits = model.lm_head(hidden_states(model, tokens)[learn]).float()
    following = tokens.roll(-1, 1)[learn]
    return torch.nn.functional.cross_entropy(logits, following, reduction="sum"), len(following)


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
        """Move the biases one step and start counting afresh."""
        for name, counts in self._counts.items():
            masters[f"{name}.e_score_correction_bias"] += BIAS_STEP * torch.sign(counts.mean() - counts)
            counts.zero_()


def rate_at(progress: float, peak: float) -> float:
    """Learning rate: linear warm-up over 2%, constant to 40%, then linearly down to zero."""
    return peak * min(1.0, progress / 0.02 + 0.01, (1.0 - progress) / 0.6)


def main(argv: list[str] | None = None) -> None:
    """Train, evaluate on the way, export the official checkpoint."""
    options = parse(argv)
    started, device = time.monotonic(), options.device
    checkpoint = options.out / "checkpoint"
    tokenizer.save(tokenizer.train(data.corpus(options.seed, options.corpus)), checkpoint)
    masters = {name: weight.to(device) for name, weight in initial_weights(options.seed).items()}
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = computing_model(dtype, device)
    balance = Balance(model)
    if options.compile:
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
    learnt = {n: w.requires_grad_() for n, w in masters.items() if STORAGE[n] in TRAINED and w.is_floating_point()}
    learnt = {n: w for n, w in learnt.items() if not n.endswith("e_score_correction_bias")}
    for name in masters.keys() - learnt.keys():
        masters[name].requires_grad_(False)
    places = dict(model.named_parameters())
    optimiser = torch.optim.AdamW(learnt.values(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    first = 0
    if options.resume and options.resume.exists():
        state = torch.load(options.resume, map_location=device)
        first = state["step"]
        optimiser.load_state_dict(state["optimiser"])
        with torch.no_grad():
            for name, weight in state["masters"].items():
                masters[name].copy_(weight)
    held_out = evaluate.HeldOut(checkpoint, options.evaluate_count)
    steps = Steps(checkpoint, options.seed, options.steps, options.scale)
    loader = DataLoader(
        torch.utils.data.Subset(steps, range(first, options.steps)), batch_size=None, num_workers=options.workers
    )
    log = (options.out / "log.jsonl").open("a")

    def record(**entry: object) -> None:
        entry["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(entry), flush=True)
        log.write(json.dumps(entry) + "\n")
        log.flush()

    total, step = torch.zeros((), device=device), first
    for step, batches in enumerate(loader, first):
        progress = max(step / options.steps, (time.monotonic() - started) / options.max_seconds)
        if progress >= 1.0:
            break
        serve(model, masters, two_bit=step % 2 == 1)
        count = sum(int(batch.learn.sum()) for batch in batches)
        for batch in batches:
            loss, _ = answer_loss(model, batch, device)
            (loss / count).backward()
            total += loss.detach() / count
        for name, weight in learnt.items():
            gradient = places[name].grad
            # The indexer only ranks, so no gradient reaches it.
            weight.grad = torch.zeros_like(weight) if gradient is None else gradient.float()
            places[name].grad = None
        torch.nn.utils.clip_grad_norm_(learnt.values(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate_at(progress, options.rate)
        optimiser.step()
        balance.apply(masters)
        if step % 50 == 49:
            record(step=step + 1, loss=round(total.item() / 50, 5), rate=optimiser.param_groups[0]["lr"])
            total.zero_()
        if step % options.evaluate_every == options.evaluate_every - 1:
            record(step=step + 1, held_out=held_out.both(model, masters))
    export.write(masters, checkpoint)
    metrics = {"steps": step + 1, "seed": options.seed, "held_out": held_out.both(model, masters)}
    record(final=metrics)
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    if options.resume:
        state = {"step": step, "optimiser": optimiser.state_dict(), "masters": masters}
        torch.save(state, options.resume)


if __name__ == "__main__":
    main()
