"""What one check found, and all of them together."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from ..errors import MoetError

WIDTH = 120
"""Columns of a printed report, where the terminal tells no other number."""
_HOPELESS = (OSError, ValueError, KeyError)  # a file of /proc or /sys that is not what it should be


class Status(StrEnum):
    """How a check ended. Only ``fail`` keeps a server from starting; ``skipped`` was not made and proves nothing."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        thing: what was looked at.
        status: how it ended.
        value: what is there; for a check that was not made, why not.
        remedy: what to do about it; empty where nothing is to be done.
        seconds: how long the check took, shared equally by findings that were made together.
    """

    thing: str
    status: Status
    value: str
    remedy: str = ""
    seconds: float = 0.0


def ok(thing: str, value: str) -> Check:
    return Check(thing, Status.OK, value)


def warn(thing: str, value: str, remedy: str) -> Check:
    return Check(thing, Status.WARN, value, remedy)


def fail(thing: str, value: str, remedy: str) -> Check:
    return Check(thing, Status.FAIL, value, remedy)


def skipped(thing: str, why: str) -> Check:
    return Check(thing, Status.SKIPPED, why)


@dataclass(frozen=True)
class Report:
    """Every finding, in the order in which the checks were made."""

    checks: tuple[Check, ...]
    seconds: float = 0.0
    about: str = field(default="this machine")

    @property
    def failed(self) -> bool:
        """Whether a check failed; warnings and skipped checks do not count."""
        return any(check.status is Status.FAIL for check in self.checks)

    def count(self, status: Status) -> int:
        return sum(check.status is status for check in self.checks)

    def lines(self, *only: Status, columns: int = WIDTH) -> list[str]:
        """The report for a person, or those of its findings that ended in one of the given ways, and the sum."""
        shown = [check for check in self.checks if not only or check.status in only]
        width = max((len(check.thing) for check in shown), default=0)
        lines = [line for check in shown for line in _lines(check, width, columns)]
        counts = ", ".join(f"{self.count(status)} {status}" for status in Status if self.count(status))
        verdict = "not fit to serve" if self.failed else "nothing stands in the way"
        return [*lines, f"{self.about}: {verdict} ({counts}; {self.seconds:.2f} s)"]

    def document(self) -> dict[str, Any]:
        """The report as JSON-serialisable data."""
        checks = [asdict(check) | {"seconds": round(check.seconds, 4)} for check in self.checks]
        counts = {str(status): self.count(status) for status in Status}
        return {
            "about": self.about,
            "failed": self.failed,
            "counts": counts,
            "seconds": round(self.seconds, 4),
            "checks": checks,
        }


def made(thing: str, look: Callable[[], Check | Iterable[Check]], remedy: str) -> list[Check]:
    """Make one check and time it. A :class:`MoetError` in it is its failure: most name value and remedy.

    Args:
        thing: its name, for the case that it raises.
        look: makes it.
        remedy: for errors that name none.
    """
    start = time.perf_counter()
    checks: list[Check] = []
    try:
        found = look()
        for check in (found,) if isinstance(found, Check) else found:
            checks.append(check)  # what was found before a check raised stays
    except MoetError as error:
        checks.append(told(thing, error, remedy))
    except _HOPELESS as error:
        what = f"{type(error).__name__}: {error}"
        checks.append(
            fail(thing, f"the check could not be made ({what})", "mend what it names, or report this as a bug")
        )
    seconds = (time.perf_counter() - start) / max(1, len(checks))
    return [replace(check, seconds=seconds) for check in checks]


def told(thing: str, error: MoetError, remedy: str) -> Check:
    """An error as the failure of a check; most errors end with their own remedy."""
    value, found, cure = str(error).rpartition("; ")
    return fail(thing, value, cure) if found else fail(thing, cure, remedy)


def _lines(check: Check, width: int, columns: int) -> Iterator[str]:
    head = f"{check.status:<8}{check.seconds:6.3f} s  {check.thing:<{width}}  "
    text = check.value if not check.remedy else f"{check.value}; {check.remedy}"
    room = max(40, columns - len(head))
    first, *rest = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield f"{head}{first}"
    for line in rest:
        yield f"{'':<{len(head)}}{line}"
