"""The one exception of the build scripts, and their exit codes."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
MISSING = 3  # a tool, a source or a machine property that the variant needs is not there
INTERRUPTED = 130


class BuildError(Exception):
    """Ends a build. `str()` is the one line for the user; `code` is the exit status."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
