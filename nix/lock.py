"""Writes flake.lock from pins.toml: lock.py [--check].

    python3 nix/lock.py            write it
    python3 nix/lock.py --check    fail if it is another one

An input is locked by its git revision, which is a hash over its content. narHash and lastModified are left out: they
can only be computed where the repositories can be reached; nix/README.md says how to add them. Exit status: 0 done or
equal, 1 not equal, 2 usage.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "lib"))

import pins as pin_table
from build_errors import FAILED, OK, USAGE, BuildError

ROOT = pin_table.ROOT
OPTIONAL = ("narHash", "lastModified", "revCount")  # what Nix may have added to a locked input


def lock(pins: pin_table.Pins) -> dict[str, Any]:
    """The lock file as data, format 7. The `original` parts are what flake.nix says."""
    github = {"owner": "NixOS", "repo": "nixpkgs", "type": "github"}
    git = {"submodules": True, "type": "git", "url": pins.get("deepgemm.repository")}
    return {
        "nodes": {
            "deepgemm": {
                "flake": False,
                "locked": {"rev": pins.get("deepgemm.revision"), **git},
                "original": git,
            },
            "nixpkgs": {
                "locked": {"rev": pins.get("nixpkgs.revision"), **github},
                "original": {"ref": pins.get("nixpkgs.branch"), **github},
            },
            "root": {"inputs": {"deepgemm": "deepgemm", "nixpkgs": "nixpkgs"}},
        },
        "root": "root",
        "version": 7,
    }


def differences(found: Any, wanted: dict[str, Any]) -> list[str]:
    """Inputs that are locked to something else, or everything if the file is of another form."""
    nodes = found.get("nodes") if isinstance(found, dict) else None
    if not isinstance(nodes, dict) or set(nodes) != set(wanted["nodes"]):
        return ["flake.lock has other inputs than flake.nix"]
    problems = []
    for name, node in wanted["nodes"].items():
        locked = {key: value for key, value in nodes[name].get("locked", {}).items() if key not in OPTIONAL}
        if locked != node.get("locked", {}) or nodes[name].get("original") != node.get("original"):
            rev = locked.get("rev", "nothing")
            problems.append(f"flake.lock has {name} at {rev}, pins.toml says {node.get('locked', {}).get('rev')}")
    return problems


def main(arguments: list[str], root: Path = ROOT) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: lock.py [--check]", file=sys.stderr)
        return USAGE
    path = root / "flake.lock"
    try:
        wanted = lock(pin_table.load(root / "pins.toml"))
        if not arguments:
            path.write_text(json.dumps(wanted, indent=2, sort_keys=True) + "\n")
            return OK
        problems = differences(json.loads(path.read_text()), wanted)
    except (BuildError, OSError, ValueError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"lock: error: {problem}; run `python3 nix/lock.py`", file=sys.stderr)
    if problems:
        return FAILED
    print("lock: flake.lock is what pins.toml says")
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
