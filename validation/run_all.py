"""Runs all suites, one after the other, with the same flags: ``python validation/run_all.py --cases demo``.

Exit status: that of the worst suite: 0 every gate passed, 1 a gate failed, 2 a suite could not be run, 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from validation.core import command
from validation.local import ROOT
from validation.suites.agentic import Agentic
from validation.suites.decode import Decode
from validation.suites.needle import Needle
from validation.suites.reasoning import Reasoning
from validation.suites.tools import Tools

SUITES = (Tools(), Reasoning(), Agentic(), Decode(), Needle())
"""The longest last."""

ONE_RUN = ("--replay", "--resume")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """The command; ``root`` is the checkout whose note of what was served last is read."""
    given = sys.argv[1:] if words is None else words
    if named := [flag for flag in ONE_RUN if any(word.partition("=")[0] == flag for word in given)]:
        print(f"all: error: {named[0]} is of one run; use that suite's own command", file=sys.stderr)
        return 2
    codes: dict[str, int] = {}
    for suite in SUITES:
        print(f"== {suite.name}", flush=True)
        start = time.monotonic()
        codes[suite.name] = command.main(suite, given, root)
        print(f"   {time.monotonic() - start:.1f} s", flush=True)
        if codes[suite.name] == 130:
            break
    words_of = {0: "passed", 1: "FAILED", 2: "not run", 130: "interrupted"}
    print("== " + ", ".join(f"{name} {words_of[code]}" for name, code in codes.items()))
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
