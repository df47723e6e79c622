"""A run against a server: begun anew or gone on with, recorded unit by unit, judged from its records at the end."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from moet_w2.errors import MoetError
from validation import ready, target
from validation.local import ROOT

from . import digest, manifest, preflight, progress, rundir, verdict
from .errors import Refusal, RunError, ServerError
from .plan import Invocation, Planned, Suite, Unit
from .prepare import prepare, recorded
from .talk import Live, Record
from .wire import Server

OUTPUT = Path(".native") / "validation"
ALIVE_SECONDS = 15.0
LOOK_SECONDS = 5.0
"""For each look at a server that has just lost a request."""


def run(suite: Suite, args: argparse.Namespace, told: str, root: Path) -> int:
    """Ask, record, judge, print. Returns the exit status.

    Args:
        told: the command, for the manifest.
        root: checkout whose note of what was served last is read.

    Raises:
        MoetError: it cannot be run, or no further; what was recorded so far stays.
    """
    aim = target.resolve(args, root, os.environ)
    server = Server(aim.base_url, aim.api_key, args.timeout)
    found = preflight.examine(server, aim)
    if args.resume:
        folder = manifest.folder_of(args.resume)
        document = _resumable(folder, found)
        cases, planned = recorded(suite, document["plan"])
    else:
        options = suite.options(args)
        cases, named, planned = prepare(suite, args.cases, options, args.only, found["max_model_len"])
        document = manifest.opened(_plan(suite, named, planned, found, options, args.only, cases, told))
        folder = rundir.create(args.output_dir or root / OUTPUT, _name(suite, named))
        manifest.write(folder, document)
    asked = f"{len(planned.invocations)} invocations of {aim.base_url} (by {aim.named_by})"
    progress.tell(f"{suite.name}: {asked} into {folder}")
    for name, reason in planned.left_out.items():
        progress.tell(f"      left out: {name}: {reason}")
    with rundir.held(folder):
        rundir.mend(folder)
        try:
            _ask(suite, cases, planned, folder, document["plan"], server)
        except Refusal as error:
            raise Refusal(f"{error}; then begin a new run, since --resume asks the same again") from None
        except ServerError as error:
            raise ServerError(f"{error}; {_remedy(folder, aim, found)}") from None
        _, records = rundir.read(folder)
        judged = verdict.judge(suite, cases, planned, records, document["plan"])
        manifest.write(folder, manifest.closed(document, folder, judged.document()))
    print("\n".join(verdict.lines(judged)))
    return 0 if judged.passed else 1


def _plan(
    suite: Suite,
    named: dict[str, Any],
    planned: Planned,
    server: dict[str, Any],
    options: dict[str, Any],
    only: str,
    cases: Any,
    told: str,
) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from bench import facts

    provenance = facts.provenance() | {"command": told}
    return {
        "suite": suite.name,
        "about": cases.about,
        "run_id": digest.of_text(f"{provenance['time']} {os.urandom(16).hex()}")[:16],
        "cases": named,
        "options": options,
        "only": only,
        "server": server,
        "allowed_faults": cases.allowed_faults,
        "units": [[invocation.id for invocation in unit.invocations] for unit in planned.units],
        "left_out": planned.left_out,
        "provenance": provenance,
    }


def _name(suite: Suite, named: dict[str, Any]) -> str:
    return f"{suite.name}-{Path(named['set']).stem}-{manifest.stamp()}"


def _resumable(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a run that may be gone on with on this server."""
    document = manifest.read(folder)
    if "outcome" in document:
        raise RunError(f"{folder} is complete; --replay judges it, and a new run needs no --resume")
    for name, value in document["plan"]["server"].items():
        if found[name] != value:
            raise RunError(
                f"{name} of the server is {found[name]}, {folder} was begun with {value}; begin a new run "
                "(a server that was started again is another one)"
            )
    return document


def _remedy(folder: Path, aim: target.Target, begun: dict[str, Any]) -> str:
    """What to do after a lost request: a run goes on only on the server that it was begun on."""
    try:
        ready.wait(aim.base_url, 0)
        same = preflight.examine(Server(aim.base_url, aim.api_key, LOOK_SECONDS), aim) == begun
    except (ready.NotReady, MoetError):
        same = False
    if same:
        return f"the server still runs, so go on with: --resume {folder}"
    return f"the server that {folder} was begun on is gone; begin a new run on one that is up"


def _ask(suite: Suite, cases: Any, planned: Planned, folder: Path, plan: dict[str, Any], server: Server) -> None:
    finished, _ = rundir.read(folder)
    total, number = len(planned.invocations), 0
    for unit in planned.units:
        number += len(unit.invocations)
        if unit.id in finished:
            progress.tell(f"[{number}/{total}] {unit.id}: done before")
            continue
        with progress.alive(unit.id, server, ALIVE_SECONDS):
            results = _at_once(suite, cases, unit, plan, server)
        rundir.append(folder, unit.id, {name: record for name, (record, _) in results.items()})
        for name, (record, faults) in results.items():
            progress.done(number, total, name, record, faults)
        if unit.stop_on_fault and any(faults for _, faults in results.values()):
            progress.tell(f"      {unit.id} must hold before anything else is asked: stopped")
            return


def _at_once(
    suite: Suite, cases: Any, unit: Unit, plan: dict[str, Any], server: Server
) -> dict[str, tuple[Record, list[str]]]:
    def one(invocation: Invocation) -> tuple[Record, list[str]]:
        talk = Live(plan["server"]["model"], verdict.salt(plan["run_id"], invocation.id), server)
        found = suite.perform(invocation, cases, talk)
        return talk.record, [f"{fault.gate}: {fault.text}" for fault in found]

    if len(unit.invocations) == 1:  # in this thread, so that Ctrl-C does not wait for the answer
        results = [one(unit.invocations[0])]
    else:
        with ThreadPoolExecutor(len(unit.invocations)) as pool:
            results = list(pool.map(one, unit.invocations))
    return {invocation.id: result for invocation, result in zip(unit.invocations, results, strict=True)}
