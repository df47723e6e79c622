"""Characters a second of the tool-call parser, ours and the pinned vLLM's, in the same run, in one-token pieces.

    python bench/dsml.py            prints a table and writes bench/results/dsml.json
    python bench/dsml.py --quick    a short run, nothing written

Runs alternate between the two parsers, so that a busy machine slows both. Reported: the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import facts  # noqa: E402
from validation import dsml_local  # noqa: E402
from validation.dsml_cases import TOKEN  # noqa: E402

RESULT = ROOT / "bench" / "results" / "dsml.json"
PARSERS = ("upstream", "ours")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}},
            },
        },
    }
]
CODE = "def f(a: int) -> int:\n    if a < 3 and b > 4:\n        return {'x': \"y\"}  # 2>&1\n"
PROSE = "The quick brown fox jumps over the lazy dog, and then it thinks about it for a while.\n"


def calls(count: int, text: str) -> str:
    """A turn with ``count`` calls, each writing ``text``."""
    parameter = '<｜DSML｜parameter name="{}" string="{}">{}</｜DSML｜parameter>\n'
    one = (
        '<｜DSML｜invoke name="write">\n'
        + parameter.format("path", "true", "src/a.py")
        + parameter.format("text", "true", text)
        + parameter.format("mode", "false", "420")
        + "</｜DSML｜invoke>\n"
    )
    return f"<｜DSML｜tool_calls>\n{one * count}</｜DSML｜tool_calls>"


def workloads(scale: int) -> dict[str, str]:
    """Outputs by name. ``scale`` 10 is the full size."""
    return {
        "thinking and prose, no call": PROSE * 40 * scale + "</think>" + PROSE * 40 * scale,
        "many small calls": "Plan.</think>Go.\n\n" + calls(8 * scale, "x = 1"),
        "one call, 2 KB of prose": "Plan.</think>\n\n" + calls(1, PROSE * 24),
        "one call, 2 KB of code": "Plan.</think>\n\n" + calls(1, CODE * 24),
        "one call, 20 KB of code": "Plan.</think>\n\n" + calls(1, CODE * 24 * scale),
        "an agent's turn": PROSE * 20 + "</think>I will write it.\n\n" + calls(2, CODE * 12),
    }


def once(which: str, pieces: list[tuple[str, list[int]]], asked: Any) -> float:
    """Seconds for one output, parser construction included as a request pays it."""
    prompt = dsml_local.TOKENIZER.encode("<think>")
    begin = time.perf_counter()
    parser = dsml_local.parser(which, asked)
    last = len(pieces) - 1
    for number, (text, ids) in enumerate(pieces):
        parser.parse_delta(text, ids, asked, prompt_token_ids=prompt, finished=number == last)
    return time.perf_counter() - begin


def measure(texts: dict[str, str], rounds: int, timer: Callable[..., float] = once) -> dict[str, dict[str, Any]]:
    """Medians by workload. Small outputs are repeated within a round until they weigh 20,000 characters."""
    asked = dsml_local.request(TOOLS)
    rows: dict[str, dict[str, Any]] = {}
    for name, text in texts.items():
        pieces = [(piece, dsml_local.TOKENIZER.encode(piece)) for piece in TOKEN.findall(text)]
        repeats = max(1, 20_000 // len(text))
        seconds: dict[str, list[float]] = {which: [] for which in PARSERS}
        for number in range(rounds + 1):
            for which in PARSERS if number % 2 else PARSERS[::-1]:
                spent = sum(timer(which, pieces, asked) for _ in range(repeats)) / repeats
                if number:  # the first round warms up
                    seconds[which].append(spent)
        rate = {which: len(text) / statistics.median(seconds[which]) for which in PARSERS}
        rows[name] = {
            "characters": len(text),
            "pieces": len(pieces),
            **{f"{which}_characters_per_second": round(rate[which]) for which in PARSERS},
            "ratio": round(rate["ours"] / rate["upstream"], 2),
        }
    return rows


def render(rows: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "| output, in one-token pieces | characters | upstream, characters/s | ours, characters/s | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        upstream, ours = (row[f"{which}_characters_per_second"] for which in PARSERS)
        lines.append(f"| {name} | {row['characters']:,} | {upstream:,} | {ours:,} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """The command. Exit code 1 where ours is slower on any output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, three rounds, nothing written")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    rows = measure(workloads(1 if arguments.quick else 10), 3 if arguments.quick else arguments.rounds)
    if not arguments.quick:
        facts.write(RESULT, {"rounds": arguments.rounds, "rows": rows})
    print(render(rows))
    return 0 if all(row["ratio"] >= 1 for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
