"""Runs the pinned pip, straight from its verified wheel, on an environment that needs no pip of its own.

So a Python without ensurepip (Debian without python3-venv) is enough, and every machine installs with
the same pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build_errors import BuildError


def pip(
    pip_wheel: Path,
    python: Path,
    arguments: Sequence[str],
    *,
    local_configuration: bool = True,
    quiet: bool = False,
) -> None:
    """Run pip for the environment of `python`. Raises BuildError with pip's last error line.

    With `local_configuration` false, the machine's pip configuration is left out (indexes, folders,
    constraints), so that a generated lock does not depend on it; certificates and proxies stay.
    """
    command = [sys.executable, f"{pip_wheel}/pip", "--python", str(python), "--disable-pip-version-check"]
    command += ["--no-input", *arguments]
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if not local_configuration:
        environment["PIP_CONFIG_FILE"] = os.devnull
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
            environment.pop(name, None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        if not quiet:
            sys.stderr.write(done.stderr)
        lines = done.stderr.splitlines() + done.stdout.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        raise BuildError(f"pip {arguments[0]} failed: {(errors or lines or ['no message'])[-1]}")
