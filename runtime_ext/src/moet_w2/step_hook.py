"""Runs something of ours at moments that vLLM has no hook for: between two steps, and after a worker's method."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .errors import UnsupportedError


def attach(runner: type, boundary: Callable[[], None]) -> None:
    """Call ``boundary`` before each real step; warm-up and profiling runs are no steps.

    Args:
        runner: vLLM's ``GPUModelRunner``, the base of the CPU's too.
        boundary: what to call, on the thread that runs the steps.

    Raises:
        UnsupportedError: the runner has no ``execute_model`` with a ``dummy_run`` argument.
    """
    original = getattr(runner, "execute_model", None)
    if original is None or "dummy_run" not in inspect.signature(original).parameters:
        raise UnsupportedError(f"{runner.__qualname__}.execute_model is not the one of the pinned vLLM")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not signature.bind(self, *args, **kwargs).arguments.get("dummy_run", False):
            boundary()
        return original(self, *args, **kwargs)

    runner.execute_model = execute_model  # type: ignore[attr-defined]


def before(owner: type, method: str, argument: str, first: Callable[[Any, Any], None]) -> None:
    """Call ``first(self, value of argument)`` whenever a method of vLLM is about to run.

    Args:
        owner: the class that is asked for it; what it inherits is left alone.
        method: its name.
        argument: the name of one of its arguments.
        first: what to call.

    Raises:
        UnsupportedError: there is no such method, or it has no such argument.
    """
    original = getattr(owner, method, None)
    if original is None or argument not in inspect.signature(original).parameters:
        raise UnsupportedError(f"{owner.__qualname__}.{method} is not the one of the pinned vLLM")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        first(self, signature.bind(self, *args, **kwargs).arguments[argument])
        return original(self, *args, **kwargs)

    setattr(owner, method, hooked)


def after(owner: type, method: str, then: Callable[[Any], None]) -> None:
    """Call ``then(self)`` whenever a method of vLLM has returned.

    Args:
        owner: the class that is asked for it; what it inherits is left alone.
        method: its name.
        then: what to call.

    Raises:
        UnsupportedError: there is no such method.
    """
    original = getattr(owner, method, None)
    if original is None:
        raise UnsupportedError(f"{owner.__qualname__} has no {method}; this vLLM is not the pinned one")

    @functools.wraps(original)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        then(self)
        return result

    setattr(owner, method, hooked)
