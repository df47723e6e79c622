"""The API's key: in the server's environment, never in a command line, a log or a file of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .errors import ConfigError

VARIABLE = "VLLM_API_KEY"
"""Where vLLM reads it."""
GUARD = "moet_w2.api_guard.Guard"
"""Middleware that asks for it where vLLM does not."""


def environment(path: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that hands the key of ``--api-key-file`` to the server; nothing without that option.

    Raises:
        ConfigError: the file cannot be read, holds no key or something that no HTTP header carries, or the
            environment has a key already. The message never holds what the file does.
    """
    if path is None:
        return {}
    if environ.get(VARIABLE):
        raise ConfigError(f"--api-key-file={path} and {VARIABLE} are both given; use one")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--api-key-file={path} cannot be read ({reason}); name a file with one line") from None
    key = text.strip()
    if not key:
        raise ConfigError(f"--api-key-file={path} is empty; write the key into it, on one line")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"--api-key-file={path} is not one line of printable ASCII without spaces; write another key")
    if path.stat().st_mode & 0o004:
        raise ConfigError(f"--api-key-file={path} can be read by everybody; chmod o-r {path}")
    return {VARIABLE: key}
