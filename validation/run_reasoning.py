"""Runs the reasoning suite (suites/reasoning.py): ``python validation/run_reasoning.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from validation.core import installed

    installed.require("validation/run_reasoning.py")

from validation.core import command
from validation.suites.reasoning import Reasoning

if __name__ == "__main__":
    sys.exit(command.main(Reasoning()))
