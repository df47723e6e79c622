"""Whether the Python that runs a command has this distribution. Needs nothing but Python itself."""

from __future__ import annotations

import importlib.util
import sys


def require(script: str) -> None:
    """End the process with one line and status 2 where moet_w2 cannot be imported.

    Args:
        script: the command's file, from the root of the repository.
    """
    if importlib.util.find_spec("moet_w2") is None:
        remedy = f".native/venv-cpu/bin/python {script} ... (make setup)"
        print(f"{script} needs this distribution's environment: {remedy}", file=sys.stderr)
        sys.exit(2)
