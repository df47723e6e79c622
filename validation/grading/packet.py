"""Makes the packet for blind grading: text only, in an order and under labels that tell nothing of the run.

    python -m validation.grading.packet RUN... --out FOLDER

RUN is the folder of a complete reasoning run; several make one packet, mixed. FOLDER is new and gets
    packet.txt    for the graders: rubric, tasks, references, answers
    sheet.yaml    an empty sheet, one for each grader
    key.json      which label is which; not for the graders
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moet_w2 import exit_status
from validation.core import digest, manifest, rundir
from validation.core.errors import ReplayError, RunError
from validation.core.prepare import recorded
from validation.core.replay import replay
from validation.suites.reasoning import Case, Reasoning

from . import rubric

HIDDEN = "[hidden]"
# Words by which a text could tell what wrote or served it.
TELLTALE = r"deep\W?seek|v?llm|mo[eé]t|pro\W?6000|\bw2\b|mxfp4"


@dataclass(frozen=True)
class Item:
    """One answer to grade: where it is from, and the conversation that a grader reads."""

    run: str
    case: Case
    turn: int
    conversation: list[tuple[str, str]]

    @property
    def name(self) -> str:
        """Of the item within its run."""
        return self.case.id if self.turn == 0 else f"{self.case.id}+correction"

    def label(self) -> str:
        """What graders call it: tells nothing, and is the same whenever the packet is made."""
        return "A" + digest.of_text(f"{self.run} {self.name}")[:7]


def items(folder: Path) -> tuple[list[Item], list[str]]:
    """The items of a run, and words to hide in them.

    Raises:
        ReplayError: the run is no complete, undamaged reasoning run.
    """
    suite = Reasoning()
    replay(suite, folder)
    document = manifest.read(folder)
    if "outcome" not in document:
        raise ReplayError(f"{folder} is not complete; go on with it by --resume")
    plan = document["plan"]
    _, planned = recorded(suite, plan)
    _, records = rundir.read(folder)
    found = []
    for invocation in planned.invocations:
        case: Case = invocation.case
        prompts = [case.prompt] + ([case.correction.prompt] if case.correction else [])
        conversation: list[tuple[str, str]] = []
        exchanges = records[invocation.id].exchanges if invocation.id in records else []
        for turn, prompt in enumerate(prompts):
            answer = exchanges[turn].answer.content if turn < len(exchanges) else "(no answer)"
            conversation = [*conversation, ("TASK", prompt), ("ANSWER", answer)]
            found.append(Item(plan["run_id"], case, turn, conversation))
    return found, [plan["server"]["model"], plan["server"]["recipe"], plan["run_id"]]


def render(found: list[Item], hidden: list[str], rules: rubric.Rubric) -> str:
    """The packet's text; ``hidden`` words are blotted out of answers."""
    blot = re.compile("|".join([*map(re.escape, hidden), TELLTALE]), re.I)
    parts = [_rules(rules)]
    for item in sorted(found, key=Item.label):
        parts.append(f"{'=' * 80}\nITEM {item.label()}: {item.case.title}\n")
        reference = item.case.reference if item.turn == 0 else item.case.correction.reference
        last = len(item.conversation) - 1
        for number, (who, text) in enumerate(item.conversation):
            shown = blot.sub(HIDDEN, text) if who == "ANSWER" else text
            mark = " (this one is graded)" if number == last else ""
            parts.append(f"{who}{mark}:\n{_indented(shown)}\n")
        parts.append(f"REFERENCE:\n{_indented(reference)}\n")
    return "\n".join(parts)


def _indented(text: str) -> str:
    return textwrap.indent(text.strip(), "    ", lambda line: True)


def _rules(rules: rubric.Rubric) -> str:
    lines = [f"Grade each ITEM by itself: 0 to {rules.points} points a dimension, and the fatal faults that it has.\n"]
    for name, dimension in rules.dimensions.items():
        lines.append(f"{name} ({dimension.weight}%): {dimension.meaning}")
        lines += [f"    {points}: {anchor}" for points, anchor in enumerate(dimension.anchors)]
    lines.append("\nfatal faults:")
    lines += [f"    {name}: {fatal.meaning} (at most {fatal.cap} of 100)" for name, fatal in rules.fatals.items()]
    return "\n".join(lines) + "\n"


def make(folders: Sequence[Path], out: Path) -> None:
    """Write packet, sheet and key into the new folder ``out``.

    Raises:
        MoetError: a run cannot be used, or ``out`` is there.
    """
    rules, rubric_digest = rubric.load()
    found: list[Item] = []
    hidden: list[str] = []
    for folder in folders:
        more, words = items(manifest.folder_of(folder))
        found, hidden = found + more, hidden + words
    labels = {item.label(): {"run": item.run, "item": item.name} for item in found}
    if len(labels) != len(found):
        raise RunError("two items have one label; give each run once")
    text = render(found, hidden, rules)
    manifests = [manifest.read(manifest.folder_of(folder)) for folder in folders]
    key: dict[str, Any] = {
        "packet_sha256": digest.of_text(text),
        "rubric_sha256": rubric_digest,
        "seals": {document["plan"]["run_id"]: document["seal"] for document in manifests},
        "labels": dict(sorted(labels.items())),
    }
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"{out} cannot be made ({error.strerror}); name a folder that is not there") from None
    (out / "packet.txt").write_text(text, encoding="utf-8")
    (out / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
    (out / "sheet.yaml").write_text(_sheet(key, rules), encoding="utf-8")


def _sheet(key: dict[str, Any], rules: rubric.Rubric) -> str:
    points = ", ".join(f"{name}: " for name in rules.dimensions)
    lines = ["grader: ", f"packet_sha256: {key['packet_sha256']}", "items:"]
    lines += [f"  {label}: {{points: {{{points}}}, fatals: []}}" for label in key["labels"]]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="packet", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args(argv)

    def run() -> int:
        make(args.runs, args.out)
        return 0

    return exit_status.of("packet", run)


if __name__ == "__main__":
    sys.exit(main())
