"""Whether a text went round in circles."""

from __future__ import annotations

from typing import Any

LEAST_TIMES, LEAST_CHARACTERS, LONGEST = 6, 240, 400


def repetition(text: str) -> dict[str, Any] | None:
    """The loop that a text ends in, or None.

    A loop is a piece of at most 400 characters that stands at least six times in a row at the very end and is at
    least 240 characters long in all. A last piece that was cut off in its middle counts as well.

    Returns:
        ``text``: the piece; ``times``; ``at``: the character where it begins.
    """
    tail = text.rstrip()[-LONGEST * (LEAST_TIMES + 1) :]
    for cut in range(min(LONGEST, len(tail))):
        end = len(tail) - cut
        piece = _piece(tail[:end], tail[end:])
        if piece is not None:
            return _whole(text.rstrip()[: len(text.rstrip()) - cut], piece)
    return None


def _piece(body: str, rest: str) -> str | None:
    """The shortest piece that ``body`` ends in often enough, where ``rest`` is its beginning once more."""
    for length in range(max(1, len(rest)), min(LONGEST, len(body) // LEAST_TIMES) + 1):
        times = max(LEAST_TIMES, -(-LEAST_CHARACTERS // length))
        piece = body[-length:]
        if piece.startswith(rest) and body.endswith(piece * times) and piece.strip():
            return piece
    return None


def _whole(body: str, piece: str) -> dict[str, Any]:
    times = 0
    while body.endswith(piece):
        body, times = body[: -len(piece)], times + 1
    return {"text": piece, "times": times, "at": len(body)}
