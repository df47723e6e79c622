"""Held-out accuracy in the trainer's own forward: python -m demo.make.evaluate CHECKPOINT.

An answer counts as right when every one of its tokens, reasoning included, is the most likely one after the tokens
before it, which is when greedy decoding writes exactly the reference answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from demo.make import checkpoint, tokenizer
from demo.make.batches import Batch, encode, pad
from demo.make.held_out import KINDS, samples
from demo.make.model import Weights, computing_model, hidden_states, serve

ROWS = 64


class HeldOut:
    """The held-out sets as padded batches, evaluated for either reading of the experts."""

    def __init__(self, directory: Path, count: int) -> None:
        coder = tokenizer.load(directory)
        self._batches: dict[str, list[Batch]] = {}
        for kind in KINDS:
            pairs = [(encode(coder, s.prompt()), encode(coder, s.reply())) for s in samples(kind, count)]
            pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
            groups = [pairs[i : i + ROWS] for i in range(0, len(pairs), ROWS)]
            self._batches[kind] = [pad(g, -(-len(g[-1][0] + g[-1][1]) // 64) * 64) for g in groups]

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module) -> dict[str, float]:
        """Share of exact answers by kind, at the weights that the model holds."""
        result = {}
        for kind, batches in self._batches.items():
            right = total = 0
            for batch in batches:
                device = next(model.parameters()).device
                tokens, learn = batch.tokens.to(device), batch.learn.to(device)
                best = model.lm_head(hidden_states(model, tokens)).argmax(-1)
                wrong = (best != tokens.roll(-1, 1)) & learn
                right += int((~wrong.any(1)).sum())
                total += len(tokens)
            if total:
                result[kind] = round(right / total, 4)
        return result

    def both(self, model: torch.nn.Module, masters: Weights) -> dict[str, dict[str, float]]:
        """Accuracy with MXFP4 experts and with 2-bit experts, quantised from master weights."""
        result: dict[str, dict[str, float]] = {}
        if not any(self._batches.values()):
            return result
        for name, two_bit in (("mxfp4", False), ("w2", True)):
            serve(model, masters, two_bit)
            result[name] = self.accuracy(model)
        return result


def main(argv: list[str] | None = None) -> None:
    """Evaluate the exported tensors of a checkpoint; prints JSON."""
    parser = argparse.ArgumentParser(prog="python -m demo.make.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=256, help="held-out conversations of each kind")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args(argv)
    sets = HeldOut(options.checkpoint, options.count)
    tensors = checkpoint.read(options.checkpoint)
    model = computing_model(getattr(torch, options.dtype), options.device)
    places = dict(model.named_parameters()) | dict(model.named_buffers())
    result = {}
    for name, two_bit in (("mxfp4", False), ("w2", True)):
        with torch.no_grad():
            for weight, value in checkpoint.from_official(tensors, two_bit).items():
                places[weight].copy_(value)
        result[name] = sets.accuracy(model)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
