"""Holds the NixOS service to the example unit: compare_unit.py UNIT SERVICE, SERVICE being the module's JSON.

Exit status: 0 they agree, 1 they differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# What a checkout and a store do differently; everything else must be equal.
OF_A_CHECKOUT = {"Environment", "ExecStart", "ReadWritePaths", "WorkingDirectory"}
OF_A_STORE = {"ExecStart", "WorkingDirectory"}
STARTED = {"After", "Description", "WantedBy", "Wants"}


def read_unit(text: str) -> dict[str, list[str]]:
    """Settings of a unit file, each with all of its values."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def written(value: object) -> str:
    """A value as a unit file has it."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def differences(unit: dict[str, list[str]], service: dict) -> list[str]:
    """Each setting that only one has, or that has another value."""
    ours = {name: written(value) for name, value in (service["unitConfig"] | service["serviceConfig"]).items()}
    problems = []
    for name in sorted((set(unit) - OF_A_CHECKOUT - STARTED) | (set(ours) - OF_A_STORE)):
        theirs = " ".join(unit[name]) if name in unit else None
        if theirs != ours.get(name):
            problems.append(f"{name}: the unit has {theirs!r}, the module {ours.get(name)!r}")
    for name in sorted(STARTED):
        words = service[{"WantedBy": "wantedBy"}.get(name, name.lower())]
        if " ".join([words] if isinstance(words, str) else words) != " ".join(unit[name]):
            problems.append(f"{name}: the unit has {unit[name]}, the module {words}")
    given = {pair.partition("=")[0] for value in unit["Environment"] for pair in value.split()}
    problems += [f"Environment: the module does not set {name}" for name in sorted(given - set(service["environment"]))]
    start = service["serviceConfig"]["ExecStart"]
    if "/bin/moet serve --recipe " not in start or "pro6000-300k.yaml" not in start:
        problems.append(f"ExecStart: {start}")
    return problems


def main(unit: str, service: str) -> int:
    problems = differences(read_unit(Path(unit).read_text()), json.loads(service))
    for problem in problems:
        print(f"service: error: {problem}", file=sys.stderr)
    print(f"service: {len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
