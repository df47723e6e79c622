"""Runs the decode suite (suites/decode.py): ``python validation/run_decode.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from validation.core import installed

    installed.require("validation/run_decode.py")

from validation.core import command
from validation.suites.decode import Decode

if __name__ == "__main__":
    sys.exit(command.main(Decode()))
