"""Run the tool-call corpus against a parser or a server.

    python -m validation.run_dsml --parser ours           this package's parser, in this process
    python -m validation.run_dsml --parser upstream       vLLM's own
    python -m validation.run_dsml --url http://127.0.0.1:8000 [--model NAME]
    python -m validation.run_dsml --table                 both parsers; writes bench/results/dsml_corpus.json

Exit code: 0 every case that was run is right, 1 one is not, 2 wrong usage or no such server.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from validation.core import installed

    installed.require("validation/run_dsml.py")

from moet_w2 import exit_status
from validation import dsml_cases

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "dsml_corpus.json"
Faults = dict[str, list[str]] | None


def main(words: list[str] | None = None) -> int:
    """The command."""
    arguments = _arguments(words)
    return exit_status.of("run_dsml", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    try:
        cases = [case for case in dsml_cases.load(arguments.cases) if arguments.only in case.id]
    except (dsml_cases.CorpusError, OSError) as error:
        print(f"run_dsml: error: {error}", file=sys.stderr)
        return 2
    if not cases:
        print(f"run_dsml: error: no case has {arguments.only!r} in its id", file=sys.stderr)
        return 2
    if arguments.table:
        return _table(cases, arguments.table)
    try:
        judge = _endpoint(arguments) if arguments.url else _local(arguments.parser)
    except Exception as error:  # whatever keeps the first question from being asked
        print(f"run_dsml: error: {error}", file=sys.stderr)
        return 2
    return _report([(case, judge(case)) for case in cases])


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_dsml", description=__doc__.partition("\n")[0])
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--parser", choices=("ours", "upstream"), help="a parser in this process")
    target.add_argument("--url", help="a vLLM server, e.g. http://127.0.0.1:8000")
    target.add_argument("--table", nargs="?", const=RESULT, type=Path, metavar="FILE", help="compare; write FILE")
    parser.add_argument("--model", help="served model name (default: the first that the server lists)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with TEXT in their id")
    parser.add_argument("--cases", type=Path, default=dsml_cases.CASES, help="folder of case files")
    return parser.parse_args(words)


def _local(which: str) -> Callable[[dsml_cases.Case], Faults]:
    from validation import dsml_local

    return lambda case: dsml_local.run(which, case)


def _endpoint(arguments: argparse.Namespace) -> Callable[[dsml_cases.Case], Faults]:
    import openai

    from validation import dsml_endpoint

    client = openai.OpenAI(base_url=f"{arguments.url.rstrip('/')}/v1", api_key="none", max_retries=0, timeout=300)
    model = arguments.model or client.models.list().data[0].id
    return lambda case: dsml_endpoint.run(client, model, case)


def _report(results: list[tuple[dsml_cases.Case, Faults]]) -> int:
    count: Counter[str] = Counter()
    for case, faults in results:
        if faults is None:
            count["not run"] += 1
        elif wrong := {mode: found for mode, found in faults.items() if found}:
            count["wrong"] += 1
            print(f"{case.file}: {case.id}{' (a policy of ours)' if case.policy else ''}")
            for mode, found in wrong.items():
                for fault in found:
                    print(f"  {mode}: {fault}")
        else:
            count["right"] += 1
    print(f"{count['right']} right, {count['wrong']} wrong, {count['not run']} not run, of {len(results)}")
    return 1 if count["wrong"] or not count["right"] else 0


def _table(cases: list[dsml_cases.Case], path: Path) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import facts
    from validation import dsml_local

    rows: dict[str, dict[str, Any]] = {}
    wrong: dict[str, list[str]] = {which: [] for which in dsml_local.PARSERS}
    for case in cases:
        group = f"{Path(case.file).stem}"
        row = rows.setdefault(group, {"cases": 0, "policy_cases": 0})
        row["cases"] += 1
        row["policy_cases"] += case.policy
        for which in dsml_local.PARSERS:
            faults = dsml_local.run(which, case)
            right = not any(faults.values())
            row[which] = row.get(which, 0) + right
            row[f"{which}_without_policy"] = row.get(f"{which}_without_policy", 0) + (right and not case.policy)
            if not right:
                wrong[which].append(case.id)
    total = {key: sum(row.get(key, 0) for row in rows.values()) for key in next(iter(rows.values()))}
    facts.write(path, {"rows": rows, "total": total, "wrong": wrong})
    print(render(rows, total))
    return 0 if not wrong["ours"] else 1


def render(rows: dict[str, dict[str, Any]], total: dict[str, Any]) -> str:
    """The table in Markdown, from a result file's rows."""
    lines = ["| cases | number | upstream right | ours right |", "| --- | ---: | ---: | ---: |"]
    for name, row in [*rows.items(), ("all", total)]:
        lines.append(f"| {name} | {row['cases']} | {row['upstream']} | {row['ours']} |")
    plain = total["cases"] - total["policy_cases"]
    lines.append(
        f"| all but our own policies | {plain} | {total['upstream_without_policy']} | {total['ours_without_policy']} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
