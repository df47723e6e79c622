"""Records to faults, faults to gates. Live runs and replays are judged here and nowhere else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from . import digest
from .errors import ReplayError
from .plan import Fault, Invocation, Planned, Suite
from .talk import EndOfRecording, Record, Replay


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run.

    Attributes:
        passed: whether every gate did.
        gates: name, meaning, number of faults, number allowed, passed.
        invocations: by id: digest of what was answered, and faults as [gate, text].
        measures: the suite's numbers.
    """

    passed: bool
    gates: list[dict[str, Any]]
    invocations: dict[str, dict[str, Any]]
    measures: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        names = ("passed", "gates", "invocations", "measures")
        return {name: getattr(self, name) for name in names}


def salt(run_id: str, invocation: str) -> str:
    """The cache salt of an invocation: another one in every run."""
    return digest.of_text(f"{run_id} {invocation}")[:16]


def judge(
    suite: Suite,
    cases: Any,
    planned: Planned,
    records: dict[str, Record],
    plan: dict[str, Any],
    strict: bool = True,
) -> Verdict:
    """Replay every record through its suite.

    Args:
        records: by invocation id.
        plan: the manifest's plan, for the model's name and the run's id.
        strict: hold every request to the recorded one; False for recordings that were edited on purpose.

    Raises:
        ReplayError: a record is not one of this suite, these cases and this code.
    """
    invocations: dict[str, dict[str, Any]] = {}
    count: Counter[str] = Counter()
    for invocation in planned.invocations:
        record = records.get(invocation.id)
        if record is None:
            entry = {"gist": None, "faults": [["complete", "it was not made"]]}
        else:
            found = _perform(suite, cases, invocation, record, plan, strict)
            entry = {"gist": record.gist(), "faults": [[fault.gate, fault.text] for fault in found]}
        count.update(gate for gate, _ in entry["faults"])
        invocations[invocation.id] = entry
    gates = []
    for name, meaning in suite.all_gates().items():
        allowed = cases.allowed_faults.get(name, 0)
        gates.append(
            {
                "name": name,
                "meaning": meaning,
                "faults": count[name],
                "allowed": allowed,
                "passed": count[name] <= allowed,
            }
        )
    asked = [(invocation, records[invocation.id]) for invocation in planned.invocations if invocation.id in records]
    return Verdict(all(gate["passed"] for gate in gates), gates, invocations, suite.measures(asked))


def _perform(
    suite: Suite, cases: Any, invocation: Invocation, record: Record, plan: dict[str, Any], strict: bool
) -> list[Fault]:
    talk = Replay(plan["server"]["model"], salt(plan["run_id"], invocation.id), record, strict)
    try:
        found = suite.perform(invocation, cases, talk)
        talk.close()
    except EndOfRecording:
        return [Fault("complete", "the recording ends before the suite does")]
    except ReplayError as error:
        raise ReplayError(f"{invocation.id}: {error}") from None
    unknown = {fault.gate for fault in found} - set(suite.all_gates())
    if unknown:
        raise RuntimeError(f"suite {suite.name} knows no gate {sorted(unknown)[0]}")
    return found


def lines(verdict: Verdict) -> list[str]:
    """For a terminal: what failed, then a line a gate."""
    told = []
    for name, entry in verdict.invocations.items():
        told += [f"     {name}: {gate}: {text}" for gate, text in entry["faults"]]
    for gate in verdict.gates:
        word = "ok  " if gate["passed"] else "FAIL"
        faults = f"{gate['faults']} faults" + (f", {gate['allowed']} allowed" if gate["allowed"] else "")
        told.append(f"{word} {gate['name']:<12} {faults:<10} {gate['meaning']}")
    return told
