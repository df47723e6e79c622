"""How a command of this distribution ends: with its own status, one line where it is refused, or quietly."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from .errors import MoetError

REFUSED = 2
UNREAD = 128 + signal.SIGPIPE
"""Of a command whose reader had enough, as `head` has: a shell says the same of programs that SIGPIPE ends."""


def of(program: str, run: Callable[[], int]) -> int:
    """Run a subcommand.

    Args:
        program: what an error begins with.
        run: gives the exit status.

    Returns:
        that status; :data:`REFUSED` for a :class:`MoetError`, which becomes a line on stderr; or :data:`UNREAD`.
    """
    try:
        status = run()
        if sys.stdout is not None:  # it was closed before the start
            sys.stdout.flush()
        return status
    except MoetError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        drop_output()
        return UNREAD


def drop_output() -> None:
    """Have what is left in stdout's buffer go nowhere: it could not be written, and must not be tried at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
