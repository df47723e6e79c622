"""The error of this command, and one finding of a check."""

from __future__ import annotations

from dataclasses import dataclass

from moet_w2.errors import MoetError


class BenchError(MoetError):
    """A box, a result or a document cannot be used; names the file, what is wrong, and the remedy."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check has to say.

    Attributes:
        where: file, relative to the checkout.
        what: what is wrong, or worth knowing.
        fault: whether the check fails for it; else it is a note.
    """

    where: str
    what: str
    fault: bool = True

    def __str__(self) -> str:
        return f"{'fault' if self.fault else 'note '}  {self.where}: {self.what}"
