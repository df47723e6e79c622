"""The compilers, where there are any."""

from __future__ import annotations

import shutil

import kernel_toolkit
import pins
import pytest
import sass
from build_errors import MISSING, BuildError
from kernel_toolkit import Compiler


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """The pinned nvcc; a test that compiles is skipped where it, or a host compiler, is not at hand."""
    try:
        return kernel_toolkit.compiler(pins.load(), sass.NATIVE, download=False)
    except BuildError as error:
        if error.code != MISSING:
            raise
        pytest.skip(f"nothing can be compiled here: {error}")


@pytest.fixture(scope="session")
def host_compiler() -> None:
    """g++, which compiles kernels to run thread by thread on the CPU; a test that needs it is skipped without."""
    if shutil.which("g++") is None:
        pytest.skip("nothing can be compiled here: no g++")
