"""Cases and units of a run, from flags or from a manifest."""

from __future__ import annotations

from typing import Any

from . import casefile, plan
from .errors import CaseError, ReplayError, RunError
from .plan import Planned, Suite


def prepare(
    suite: Suite, name: str, options: dict[str, Any], only: str, limit: int | None
) -> tuple[Any, dict[str, Any], Planned]:
    """Cases, what the manifest says of them, and the units.

    Args:
        name: of the case set, or its file.
        options: the suite's own.
        only: text that an invocation's id must hold.
        limit: the server's max_model_len, where it is known.

    Raises:
        CaseError, RunError: they cannot be had.
    """
    path = casefile.locate(suite.name, name)
    if not name.endswith(".yaml") and not path.is_file():
        what = "name a case set that is there: full, demo, or a file that ends in .yaml"
        raise CaseError(f"{suite.name} has no cases {name!r}; {what}")
    cases, files = casefile.load(suite.cases, path)
    planned = suite.plan(cases, options, limit)
    plan.unique(planned.invocations)
    if planned.units and only:
        planned = plan.only(planned, only)
    if not planned.units:
        reason = next(iter(planned.left_out.values()), "the set is empty")
        raise RunError(f"{path} leaves nothing to ask: {reason}")
    ours = path.parent == casefile.CASES / suite.name
    return cases, {"set": path.stem if ours else str(path), "files": files}, planned


def recorded(suite: Suite, told: dict[str, Any]) -> tuple[Any, Planned]:
    """The cases and units that a manifest's plan names.

    Raises:
        ReplayError: the plan is another suite's, or the cases have changed since.
    """
    if told["suite"] != suite.name:
        raise ReplayError(f"this is a run of {told['suite']}, not of {suite.name}; use run_{told['suite']}.py")
    name = told["cases"]["set"]
    cases, named, planned = prepare(suite, name, told["options"], told["only"], told["server"]["max_model_len"])
    if named != told["cases"]:
        raise ReplayError(f"cases {suite.name}/{name} have changed since they were recorded; record them again")
    return cases, planned
