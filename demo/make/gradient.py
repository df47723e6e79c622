"""Loss and gradient of one batch: eagerly, or on CUDA as a captured graph for each batch shape.

A model this small spends its time launching kernels; a replayed graph launches all of a batch's at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from demo.make.batches import Batch
from demo.make.model import hidden_states

# Room for answers in a batch, in tokens a row; the longest answers have about 130, the average about 60.
ROOM = 96
UNUSED = -100


@dataclass(frozen=True)
class Inputs:
    """tokens [rows, length]; places [room] flat positions of answer tokens' predecessors; targets [room]; weight []."""

    tokens: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weight: torch.Tensor

    def to(self, device: str) -> Inputs:
        """The same on another device."""
        return Inputs(*(t.to(device) for t in (self.tokens, self.places, self.targets, self.weight)))

    def copy_(self, other: Inputs) -> None:
        """Take over another batch's values."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.copy_(theirs, non_blocking=True)


def inputs(batch: Batch, weight: float) -> Inputs:
    """Lay a batch out at fixed size. `weight` multiplies the summed loss."""
    room = batch.tokens.shape[0] * ROOM
    learnt = batch.learn.flatten().nonzero().flatten()[:room]
    places = torch.zeros(room, dtype=torch.long)
    targets = torch.full((room,), UNUSED, dtype=torch.long)
    places[: len(learnt)] = learnt
    targets[: len(learnt)] = batch.tokens.flatten()[learnt + 1]
    return Inputs(batch.tokens, places, targets, torch.tensor(weight))


class Gradient:
    """Adds the gradient of weight * summed cross-entropy to the parameters' grad tensors."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        self._model, self._device = model, device
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Inputs, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.startswith("cuda") else None
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def _eager(self, given: Inputs) -> torch.Tensor:
        hidden = hidden_states(self._model, given.tokens).flatten(0, 1)[given.places]
        logits = self._model.lm_head(hidden).float()
        summed = torch.nn.functional.cross_entropy(logits, given.targets, reduction="sum", ignore_index=UNUSED)
        loss = summed * given.weight
        loss.backward()
        return loss.detach()

    def capture(self, given: Inputs) -> None:
        """Record the graph of a batch shape. Gradients and counters are left with rubbish: clear them after."""
        static = given.to(self._device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._eager(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._eager(static)
        self._graphs[given.tokens.shape] = graph, static, loss

    def add(self, given: Inputs) -> torch.Tensor:
        """Run one batch; returns its weighted loss (valid until the next batch)."""
        if given.tokens.shape not in self._graphs:
            return self._eager(given.to(self._device))
        graph, static, loss = self._graphs[given.tokens.shape]
        static.copy_(given)
        graph.replay()
        return loss
