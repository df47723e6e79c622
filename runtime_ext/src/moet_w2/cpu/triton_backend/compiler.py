"""Compiler half of the ``cpu`` Triton backend: supports no target, so nothing is ever compiled by it."""

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget


class InterpretedCPUBackend(BaseBackend):
    """Listed, never chosen: ``supports_target`` is false for every target."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return False

    def hash(self) -> str:
        return "moet-w2-cpu-interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError("the cpu Triton backend interprets kernels and compiles none")

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        raise NotImplementedError("the cpu Triton backend interprets kernels and compiles none")

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError("the cpu Triton backend interprets kernels and compiles none")

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
