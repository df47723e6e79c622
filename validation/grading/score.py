"""Scores a graded packet. The same files give the same bytes; no float is involved.

    python -m validation.grading.score FOLDER SHEET... [--out FILE | --check FILE]

FOLDER holds packet.txt and key.json. Exit status: 0 every run reaches the pass mark, 1 one does not, 2 something cannot
be scored. With --check: 0 FILE holds exactly what these sheets give, 1 it does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from moet_w2 import exit_status
from validation.core import digest
from validation.core.errors import CaseError, ReplayError

from . import rubric
from .rubric import Item, Rubric

CORRECTION = "+correction"


def item_score(graded: Sequence[Item], rules: Rubric) -> Fraction:
    """The score of one item, of 100, from each grader's word on it."""
    total = sum(
        Fraction(dimension.weight * sum(item.points[name] for item in graded), rules.points * len(graded))
        for name, dimension in rules.dimensions.items()
    )
    found = [fatal for name, fatal in rules.fatals.items() if 2 * sum(name in i.fatals for i in graded) >= len(graded)]
    return min([total, *(Fraction(fatal.cap) for fatal in found)])


def run_score(scores: dict[str, Fraction], rules: Rubric) -> tuple[Fraction, dict[str, Fraction]]:
    """A run's score and its cases', from its items'.

    Args:
        scores: by item: a case's id, and with ``+correction`` its second turn.
    """
    weight = Fraction(rules.correction_weight, 100)
    cases = {}
    for name, first in scores.items():
        if not name.endswith(CORRECTION):
            second = scores.get(name + CORRECTION)
            cases[name] = first if second is None else first * (1 - weight) + second * weight
    return sum(cases.values(), Fraction(0)) / len(cases), cases


def told(value: Fraction) -> str:
    """Two decimals, halves to even."""
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return str(exact.quantize(Decimal("0.01"), ROUND_HALF_EVEN))


def score(folder: Path, sheets: Sequence[Path]) -> dict[str, Any]:
    """The score document.

    Raises:
        MoetError: packet, key, rubric and sheets do not belong together.
    """
    rules, rubric_digest = rubric.load()
    try:
        key = json.loads((folder / "key.json").read_text(encoding="utf-8"))
        packet_digest = digest.of_file(folder / "packet.txt")
    except (OSError, ValueError) as error:
        raise ReplayError(f"{folder} holds no packet ({error}); make one with validation.grading.packet") from None
    if key["packet_sha256"] != packet_digest:
        raise ReplayError(f"{folder / 'packet.txt'} was changed after it was made; make it again")
    if key["rubric_sha256"] != rubric_digest:
        raise ReplayError(f"the rubric has changed since {folder} was made; make the packet again")
    loaded = [rubric.load_sheet(path, rules, set(key["labels"])) for path in sheets]
    for path, (sheet, _) in zip(sheets, loaded, strict=True):
        if sheet.packet_sha256 != packet_digest:
            raise CaseError(f"{path}: packet_sha256 is not that of {folder / 'packet.txt'}; grade that packet")
    if len({sheet.grader for sheet, _ in loaded}) != len(loaded):
        raise CaseError("two sheets name the same grader; give each grader's once")
    runs: dict[str, dict[str, Fraction]] = defaultdict(dict)
    for label, place in key["labels"].items():
        runs[place["run"]][place["item"]] = item_score([sheet.items[label] for sheet, _ in loaded], rules)
    results = {}
    for run, scores in sorted(runs.items()):
        total, cases = run_score(scores, rules)
        results[run] = {
            "seal": key["seals"][run],
            "score": told(total),
            "exact": str(total),
            "passed": total >= rules.pass_mark,
            "cases": {name: told(value) for name, value in sorted(cases.items())},
            "items": {name: told(value) for name, value in sorted(scores.items())},
        }
    return {
        "schema": "moet.score",
        "schema_version": 1,
        "pass_mark": rules.pass_mark,
        "packet_sha256": packet_digest,
        "rubric_sha256": rubric_digest,
        "sheets": {sheet.grader: told_digest for sheet, told_digest in loaded},
        "runs": results,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="score", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("sheets", nargs="+", type=Path, metavar="SHEET")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--out", type=Path, metavar="FILE")
    what.add_argument("--check", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    return exit_status.of("score", lambda: _score(args))


def _score(args: argparse.Namespace) -> int:
    try:
        found = score(args.folder, args.sheets)
        text = json.dumps(found, indent=1) + "\n"
        if args.out:
            args.out.write_text(text, encoding="utf-8")
        same = args.check is None or args.check.read_text(encoding="utf-8") == text
    except OSError as error:
        print(f"score: error: {error}", file=sys.stderr)
        return 2
    for run, result in found["runs"].items():
        print(f"{'ok  ' if result['passed'] else 'FAIL'} {run}: {result['score']} of 100, {found['pass_mark']} pass")
    if not same:
        print(f"score: {args.check} is not what these sheets give", file=sys.stderr)
    if args.check:
        return 0 if same else 1
    return 0 if all(result["passed"] for result in found["runs"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
