"""Validate a running server: the first check that fails ends the run with one line and exit code 1.

Exit codes: 0 everything holds, 1 a check failed, 2 it could not be told what to check.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai

from moet_w2 import exit_status

from . import target
from .checks import CHECKS, CheckFailed, Context

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Command line of ``scripts/validate-api.sh``.

    Args:
        argv: arguments; default: those of the process.
        root: checkout whose note of what was served last is read.
    """
    args = _parse(argv)
    return exit_status.of("validate", lambda: _validate(args, root))


def _validate(args: argparse.Namespace, root: Path) -> int:
    aim = target.resolve(args, root, os.environ)
    if not args.json:
        print(f"validate: {aim.base_url} (by {aim.named_by}), recipe {aim.recipe.name}", flush=True)
    client = openai.OpenAI(
        base_url=f"{aim.base_url}/v1", api_key=aim.api_key or "none", max_retries=0, timeout=args.timeout
    )
    results = run(Context(aim, client, args.health_timeout), quiet=args.json)
    failed = next((result for result in results if result["state"] == "failed"), None)
    if args.json:
        print(json.dumps(_document(aim, results), indent=2, ensure_ascii=False))
    if failed:
        print(f"validate: FAIL: {failed['name']}: {failed['error']}", file=sys.stderr)
    return 1 if failed else 0


def run(context: Context, quiet: bool = False) -> list[dict[str, Any]]:
    """Run the checks in order, stop at the first that fails.

    Each says by a line of its own what it is about to do, since some take long: vLLM's import, the wait for /health,
    the first answers of a server.

    Args:
        context: what the checks need.
        quiet: print nothing.

    Returns:
        one record for each check: name, state ("passed", "failed" or "not run"), seconds, and what it found.
    """
    results: list[dict[str, Any]] = []
    for name, check in CHECKS.items():
        if results and results[-1]["state"] != "passed":
            results.append({"name": name, "state": "not run"})
            continue
        if not quiet:
            print(f"..  {name:<11} {_doing(name, context)}", flush=True)
        start = time.monotonic()
        try:
            outcome = {"state": "passed", "found": check(context)}
        except CheckFailed as error:
            outcome = {"state": "failed", "error": " ".join(str(error).split())}
        except openai.OpenAIError as error:
            outcome = {"state": "failed", "error": " ".join(f"{type(error).__name__}: {error}".split())}
        results.append({"name": name, "seconds": round(time.monotonic() - start, 3)} | outcome)
        if not quiet and outcome["state"] == "passed":
            print(f"ok  {name:<11} {results[-1]['seconds']:7.2f} s  {_line(outcome['found'])}", flush=True)
    return results


def _doing(name: str, context: Context) -> str:
    """What a check does; of the one that waits for the server, how long at most."""
    what = (CHECKS[name].__doc__ or name).splitlines()[0].rstrip(".")
    return f"{what} ({context.health_limit:g} s at most)" if name == "health" else what


def _document(aim: target.Target, results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "moet.smoke",
        "schema_version": 1,
        "passed": all(result["state"] == "passed" for result in results),
        "base_url": aim.base_url,
        "model": aim.model,
        "recipe": aim.recipe.name,
        "recipe_sha256": aim.recipe.digest or None,
        "audit": None if aim.audit_path is None else str(aim.audit_path),
        "checks": results,
    }


def _line(found: dict[str, Any]) -> str:
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in found.items())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="validate-api.sh", description=__doc__)
    target.add_arguments(parser)
    parser.add_argument("--health-timeout", type=target.seconds, default=30, metavar="SECONDS")
    parser.add_argument("--timeout", type=target.seconds, default=300, metavar="SECONDS", help="of one request")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
