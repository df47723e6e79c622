"""How a plain function takes the place of a Triton kernel."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import UnsupportedError

Grid = tuple[int, ...]


@dataclass(frozen=True)
class Replacement:
    """One row of the table.

    Attributes:
        module: importable module that defines the kernel.
        attribute: its name there; ``Class.kernel`` for a kernel held by a launcher class.
        function: ``function(grid, **arguments of the kernel)``.
        when: when vLLM launches the kernel; for the reader.
    """

    module: str
    attribute: str
    function: Callable[..., Any]
    when: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


class PlainKernel:
    """Stands where a Triton kernel stood: ``kernel[grid](*args, **kwargs)`` calls the plain function.

    Launch options that are not kernel arguments (``num_warps`` and the like) are dropped.
    """

    def __init__(self, original: Any, replacement: Replacement) -> None:
        self.original = original
        self.function = replacement.function
        self.arg_names = tuple(original.arg_names)
        self._known = frozenset(self.arg_names)
        self._defaults = _defaults(original)
        self.__name__ = replacement.attribute.rpartition(".")[2]
        self.__module__ = replacement.module

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            named = dict(self._defaults)
            named.update(zip(self.arg_names, args, strict=False))
            named.update((key, value) for key, value in kwargs.items() if key in self._known)
            if self.function(grid, **named) is NotImplemented:
                self.original[grid](*args, **kwargs)

        return launch


def _defaults(kernel: Any) -> dict[str, Any]:
    """Default values of a kernel's arguments."""
    parameters = inspect.signature(kernel.fn).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def attach_all(table: Iterable[Replacement]) -> None:
    """Install every row of ``table``; a row that is installed already stays.

    Raises:
        UnsupportedError: see :func:`attach_one`.
    """
    swapped: dict[int, tuple[Any, PlainKernel]] = {}
    for row in table:
        original, plain = attach_one(row)
        if original is not plain:
            swapped[id(original)] = (original, plain)
    _rebind_copies(swapped)


def attach_one(row: Replacement) -> tuple[Any, PlainKernel]:
    """Install one row and return what stood there and what stands there now.

    Raises:
        UnsupportedError: the kernel is missing, or its arguments are not those that the replacement takes.
    """
    try:
        host: Any = importlib.import_module(row.module)
        *path, leaf = row.attribute.split(".")
        for part in path:
            host = getattr(host, part)
        original = getattr(host, leaf)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"Triton kernel {row.name} is not in this vLLM ({error}); this vLLM is not the pinned one"
        ) from error
    if isinstance(original, PlainKernel):
        return original, original
    takes = tuple(inspect.signature(row.function).parameters)[1:]
    has = tuple(getattr(original, "arg_names", ()))
    if takes != has:
        differing = sorted(set(takes) ^ set(has)) or ["their order"]
        raise UnsupportedError(
            f"Triton kernel {row.name} changed its arguments ({', '.join(differing)}); "
            f"the plain replacement {row.function.__name__} no longer fits it"
        )
    plain = PlainKernel(original, row)
    setattr(host, leaf, plain)
    return original, plain


def _rebind_copies(swapped: dict[int, tuple[Any, PlainKernel]]) -> None:
    """Point ``from module import kernel`` copies in loaded vLLM modules at the replacements."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm."):
            continue
        for attribute, value in list(vars(module).items()):
            found = swapped.get(id(value))
            if found is not None and found[0] is value:
                setattr(module, attribute, found[1])
