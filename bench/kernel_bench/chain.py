"""Runs of the kernels over memory that holds NaN before each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from moet_w2.kernels import driver, experts, shapes
from moet_w2.kernels.call import Call, check
from moet_w2.kernels.driver import Grid, Kernel

from .cases import Case, Inputs
from .data import Weights

STEPS = ("routing", "gemm13", "gemm2", "combine")
Find = Callable[[shapes.Launch], Kernel]
DEVICE = "cuda"


def committed(step: shapes.Launch) -> Kernel:
    """The kernel of a step from the cubins of the repository."""
    return driver.kernel(step.source, step.name, torch.cuda.current_device())


def from_folder(folder: Path) -> Find:
    """Kernels from ``<folder>/<source>.cubin`` where there is such a file, from the repository otherwise."""
    modules: dict[str, object] = {}

    def find(step: shapes.Launch) -> Kernel:
        path = folder / f"{step.source}.cubin"
        if not path.exists():
            return committed(step)
        import cuda_probe
        from cuda.bindings import driver as cuda

        if step.source not in modules:
            torch.cuda.current_stream()  # creates the context the module is loaded into
            modules[step.source] = cuda_probe.check(cuda.cuModuleLoadData(path.read_bytes()))
        function = cuda_probe.check(cuda.cuModuleGetFunction(modules[step.source], step.name.encode()))
        return Kernel(step.name, torch.cuda.current_device(), int(function))

    return find


class Chain:
    """One call's four launches over its own workspace.

    Attributes:
        plan: the call's descriptor.
        call: its arguments.
        workspace: uint8; ``views`` reads it.
        out: bfloat16 ``[T, H]``.
        views: entries, header, routes, inner and routed as tensors.
    """

    def __init__(self, call: Call, find: Find = committed, workspace: torch.Tensor | None = None) -> None:
        check(call)
        self.call, self.plan = call, call.plan
        if workspace is None:
            workspace = torch.empty(self.plan.workspace_bytes, dtype=torch.uint8, device=call.x.device)
        self.workspace = workspace[: self.plan.workspace_bytes]
        self.out = torch.empty_like(call.x)
        self.views = self.plan.views(self.workspace)
        self._bound = [(step, *_bind(step, find)) for step in self.plan.steps]
        self._params = experts.parameters(self.plan, call, self.workspace, self.out)

    def poison(self) -> None:
        """Fill everything that the kernels write with NaN, pointers and indices with -1."""
        self.workspace.fill_(0xFF)
        self.out.fill_(float("nan"))

    def launch(self, name: str) -> None:
        """Enqueue one of :data:`STEPS`."""
        index = STEPS.index(name)
        (step, kernel, grid), params = self._bound[index], self._params[index]
        kernel.launch(grid, step.block, step.shared, params, pdl=True)

    def run(self) -> torch.Tensor:
        """Enqueue all four; ``out``."""
        for name in STEPS:
            self.launch(name)
        return self.out

    def kernels(self) -> list[str]:
        """Names of the four."""
        return [step.name for step in self.plan.steps]


def make_call(
    case: Case, weights: Weights, given: Inputs, slots: torch.Tensor | None, counts: torch.Tensor | None
) -> Call:
    """The call of a case, with the correction rows that ``slots`` asks for."""
    geometry = weights.geometry
    return Call(
        given.x,
        given.weights,
        given.ids,
        weights.storage,
        geometry.experts,
        geometry.width,
        case.limit,
        weights.placed(slots),
        slots,
        counts,
        given.padding,
    )


def _bind(step: shapes.Launch, find: Find) -> tuple[Kernel, Grid]:
    kernel = find(step)
    kernel.allow_shared(step.shared)
    return kernel, step.grid or (kernel.resident_blocks(step.block, step.shared), 1, 1)
