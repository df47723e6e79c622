"""Whether a text went round in circles."""

from __future__ import annotations

from typing import Any

LEAST_TIMES, LEAST_CHARACTERS, LONGEST = 6, 240, 400


def repetition(text: str) -> dict[str, Any] | None:
    """The loop that a text ends in, or None.

    A loop is a piece of at most 400 characters that stands at least six times in a row at the very end and is at
    least 240 characters long in all. Where the text was cut within a piece, the piece is told from there on.

    Returns:
        ``text``: the piece; ``times``; ``at``: the character where the first one begins.
    """
    body = text.rstrip()
    for length in range(1, min(LONGEST, len(body) // LEAST_TIMES) + 1):
        piece = body[-length:]
        least = max(LEAST_TIMES, -(-LEAST_CHARACTERS // length))
        if body.endswith(piece * least):
            times, at = 0, len(body)
            while body.endswith(piece, 0, at):
                times, at = times + 1, at - length
            return {"text": piece, "times": times, "at": at}
    return None
