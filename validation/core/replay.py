"""Judging a recorded run again, as it is or after a stated edit."""

from __future__ import annotations

from pathlib import Path

from . import derived, digest, manifest, rundir, verdict
from .errors import ReplayError
from .plan import Suite
from .prepare import recorded


def replay(suite: Suite, folder: Path, edits: list[derived.Edit] | None = None) -> verdict.Verdict:
    """Judge a recorded run again.

    Args:
        edits: to make on the recording first; the outcome is then not held to the recorded one.

    Raises:
        ReplayError: the run is damaged, was edited, was recorded with other cases, or is judged otherwise now.
    """
    document = manifest.read(folder)
    cases, planned = recorded(suite, document["plan"])
    _, records = rundir.read(folder)
    if edits is not None:
        return verdict.judge(suite, cases, planned, derived.apply(records, edits), document["plan"], strict=False)
    judged = verdict.judge(suite, cases, planned, records, document["plan"])
    if "outcome" in document and digest.of_json(judged.document()) != digest.of_json(document["outcome"]):
        raise ReplayError(f"{folder}: the outcome in its manifest is not what its records give; record it again")
    return judged
