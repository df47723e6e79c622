"""Wait until a server answers /health, or say why waiting is over."""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

POLL_SECONDS = 0.25


class NotReady(Exception):
    """The server did not become ready; str() is the one line that says so."""


def wait(base_url: str, limit: float, pid: int | None = None) -> float:
    """Poll ``base_url``/health until it answers 200.

    Args:
        base_url: URL of the API, without /v1.
        limit: seconds to wait.
        pid: process to watch; when it ends, so does the waiting.

    Returns:
        seconds waited.

    Raises:
        NotReady: the limit passed or the process ended.
    """
    start = time.monotonic()
    while True:
        reason = _health(base_url)
        waited = time.monotonic() - start
        # Looked at last, so that an answer of another server at this address is not taken for one of this.
        if pid is not None and _ended(pid):
            raise NotReady(f"the server (pid {pid}) ended after {waited:.1f} s, before it was ready")
        if reason is None:
            return waited
        if waited >= limit:
            raise NotReady(f"{base_url}/health gave no 200 within {limit:g} s ({reason}); is the server up?")
        time.sleep(POLL_SECONDS)


def _health(base_url: str) -> str | None:
    """None when healthy, else the reason."""
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=5) as answer:
            return None if answer.status == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet collected by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")


def main() -> int:
    """Command line: print the seconds until ready, or one line on stderr."""
    parser = argparse.ArgumentParser(prog="ready", description=main.__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--pid", type=int)
    args = parser.parse_args()
    try:
        print(f"{wait(args.base_url, args.timeout, args.pid):.1f}")
    except NotReady as error:
        print(f"ready: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ready: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
