"""Adds the system calls of mapped layers to a container engine's seccomp profile, and changes nothing else.

The default profiles of docker (moby) and podman (containers/common) refuse mbind, set_mempolicy and get_mempolicy
without CAP_SYS_NICE, and move_pages always. The kernel itself asks for no privilege for what mapped layers do with
them: binding a process's own memory, and asking where its own pages lie (mbind(2), move_pages(2)).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from build_errors import FAILED, OK, USAGE, BuildError

CALLS = ("mbind", "move_pages")
_NAMING = {"names", "name"}
"""Fields by which a rule names its calls; docker still takes the old one, of a single name."""
PODMAN = Path("/usr/share/containers/seccomp.json")


def read(path: Path) -> dict[str, Any]:
    """A profile, before an engine is given it. What its rules say is the engine's to judge.

    Raises BuildError for a file that cannot be read, is not JSON, or lacks what makes a profile.
    """
    remedy = "scripts/seccomp-profile.sh writes one"
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(f"{path} cannot be read ({error.strerror}); {remedy}", USAGE) from None
    except ValueError as error:
        raise BuildError(f"{path} is no seccomp profile: not JSON ({error}); {remedy}", USAGE) from None
    if not isinstance(profile, dict) or not isinstance(profile.get("defaultAction"), str):
        raise BuildError(f"{path} is no seccomp profile: it has no defaultAction; {remedy}", USAGE)
    rules = profile.get("syscalls")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule.keys() & _NAMING for rule in rules):
        raise BuildError(f"{path} is no seccomp profile: its syscalls are no list of rules with names; {remedy}", USAGE)
    return profile


def allow(profile: dict[str, Any]) -> dict[str, Any]:
    """The profile with CALLS allowed for every process. A rule that names only one of them goes, whatever it said: two
    rules of different actions for a call contradict each other.

    Raises BuildError if it is no profile that allows by name what it does not refuse.
    """
    rules = profile.get("syscalls")
    if profile.get("defaultAction") not in ("SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS"):
        raise BuildError(f"defaultAction is {profile.get('defaultAction')!r}; name a profile that refuses calls")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and "names" in rule for rule in rules):
        raise BuildError("syscalls is no list of rules with names; name the engine's own default profile")
    kept = [{**rule, "names": [name for name in rule["names"] if name not in CALLS]} for rule in rules]
    added = {"names": list(CALLS), "action": "SCMP_ACT_ALLOW", "comment": "locked host memory on the GPU's NUMA node"}
    return {**profile, "syscalls": [*(rule for rule in kept if rule["names"]), added]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="seccomp-profile.sh", description=__doc__.splitlines()[0])
    parser.add_argument("default", nargs="?", type=Path, default=PODMAN, metavar="DEFAULT.json")
    options = parser.parse_args(arguments)
    try:
        profile = allow(json.loads(options.default.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"seccomp: error: {options.default}: {error}; name the engine's default profile", file=sys.stderr)
        return FAILED
    except BuildError as error:
        print(f"seccomp: error: {options.default}: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(profile, indent=2))
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
