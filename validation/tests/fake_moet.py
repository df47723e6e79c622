"""Stands in for `moet` in tests of the scripts: serves the fake server instead of vLLM, all else is the real one.

FAKE_BEHAVIOUR (JSON) spoils the server's answers; FAKE_LOG is a line for its log; FAKE_AUDIT is copied to where
the audit belongs; FAKE_STUBBORN makes it ignore SIGTERM.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path

from fake_server import Behaviour, serve

from moet_w2 import cli, command, recipe, served


def main() -> int:
    if sys.argv[1] != "serve" or {"--dry-run", "--help"} & set(sys.argv):
        return cli.main()
    parser = ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--recipe", required=True)
    loaded = recipe.load(parser.parse_args().recipe)
    port, audit = int(os.environ["PORT"]), Path(os.environ["W2_AUDIT_PATH"])
    shutil.copy(os.environ["FAKE_AUDIT"], audit)
    print(os.environ["FAKE_LOG"], flush=True)
    done = threading.Event()
    ignored = "FAKE_STUBBORN" in os.environ
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else lambda *_: done.set())
    overrides = command.Overrides(port=port, audit_path=audit)
    served.write(loaded, command.render(loaded, overrides))
    with serve(Behaviour(**json.loads(os.environ["FAKE_BEHAVIOUR"])), port):
        done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
