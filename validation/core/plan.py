"""What a run asks, in which order, and what a suite must be able to say about it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .casefile import CaseSet
from .errors import RunError

if TYPE_CHECKING:
    from .talk import Talk

SHARED_GATES = {
    "complete": "every invocation was made",
    "answered": "every request was answered with status 200 and its stream came to its end",
    "finished": "every answer ended by itself (finish_reason stop or tool_calls), not at a limit",
    "clean": "no markup of the model reached the client",
    "counted": "every answer came with its token usage",
}


@dataclass(frozen=True)
class Fault:
    """Something that does not hold: the gate that it fails, and one line."""

    gate: str
    text: str


@dataclass(frozen=True)
class Invocation:
    """One thing to ask: one case once, which may take several requests.

    Attributes:
        id: unique in a run.
        kind: the suite's word, such as smoke, measured, concurrent.
        case: the case, as the suite's model holds it.
        seed: of the sampler, or None.
    """

    id: str
    kind: str
    case: Any
    seed: int | None = None


@dataclass(frozen=True)
class Unit:
    """Invocations that are made at once; what a resumed run repeats as a whole. Most hold one."""

    id: str
    invocations: tuple[Invocation, ...]
    stop_on_fault: bool = False


@dataclass
class Planned:
    """Units of a run, and what was left out and why."""

    units: list[Unit]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def invocations(self) -> list[Invocation]:
        """All of them, in order."""
        return [invocation for unit in self.units for invocation in unit.invocations]


class Suite:
    """One suite. ``perform`` runs live and in replay alike; all that differs is who answers."""

    name: ClassVar[str]
    about: ClassVar[str]
    cases: ClassVar[type[CaseSet]]
    gates: ClassVar[dict[str, str]]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Flags of this suite alone."""

    def options(self, args: argparse.Namespace) -> dict[str, Any]:
        """What those flags say, as JSON, for the manifest."""
        return {}

    def plan(self, cases: Any, options: dict[str, Any], limit: int | None) -> Planned:
        """The units of a run; ``limit`` is the server's max_model_len where it is known."""
        raise NotImplementedError

    def perform(self, invocation: Invocation, cases: Any, talk: Talk) -> list[Fault]:
        """Ask, and say what does not hold."""
        raise NotImplementedError

    def measures(self, records: Sequence[Any]) -> dict[str, Any]:
        """Numbers for the reader, from all records; no gate depends on them."""
        return {}

    def all_gates(self) -> dict[str, str]:
        """Name and meaning, the shared ones first."""
        return SHARED_GATES | self.gates


def only(planned: Planned, text: str) -> Planned:
    """The units with ``text`` in an invocation's id.

    Raises:
        RunError: there is none.
    """
    units = [unit for unit in planned.units if any(text in invocation.id for invocation in unit.invocations)]
    if not units:
        out = [f"{name} is left out: {reason}" for name, reason in planned.left_out.items() if text in name]
        raise RunError(out[0] if out else f"no invocation has {text!r} in its id; --list shows them")
    return Planned(units, planned.left_out)


def unique(invocations: Iterable[Invocation]) -> None:
    """Raises RunError if an id occurs twice: records are kept by it."""
    seen: set[str] = set()
    for invocation in invocations:
        if invocation.id in seen:
            raise RunError(f"invocation {invocation.id} occurs twice; give each case an id of its own")
        seen.add(invocation.id)
