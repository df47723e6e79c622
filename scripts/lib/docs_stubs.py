"""Stand-ins for heavy packages while a program is run up to its parsed arguments: none of them is needed for that.

Importing torch, vLLM and transformers takes longer than everything else that `make docs-check` does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

HEAVY = frozenset("torch transformers vllm numpy safetensors tokenizers matplotlib triton openai cuda pynvml".split())


class _Anything(type):
    """A class that has every attribute, each of them such a class again."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __or__(cls, other: object) -> type:
        return cls

    __ror__ = __or__


def anything(name: str) -> type:
    """A class that can be called, inherited from, subscripted, iterated over, and used as a decorator."""

    def new(cls: type, *given: Any, **named: Any) -> Any:
        return object.__new__(cls)

    body = {
        "__new__": new,
        "__init__": lambda self, *given, **named: None,
        "__call__": lambda self, *given, **named: self,
        "__getattr__": lambda self, attribute: anything(attribute),
        "__class_getitem__": classmethod(lambda cls, item: cls),
        "__iter__": lambda self: iter(()),
    }
    return _Anything(name, (), body)


class _Module(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] in HEAVY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


@contextmanager
def installed() -> Iterator[None]:
    """Imports of heavy packages give stand-ins; whatever is imported meanwhile is forgotten in the end."""
    finder, before = _Finder(), dict(sys.modules)
    for name in [name for name in sys.modules if name.partition(".")[0] in HEAVY]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.clear()
        sys.modules.update(before)
