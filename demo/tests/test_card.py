"""The card's measured numbers are those of the result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1]
KINDS = ("arithmetic", "plain call", "call")


def row(start: str) -> list[str]:
    """Cells of the card's table row that starts so."""
    lines = [line for line in (FOLDER / "CARD.md").read_text().splitlines() if line.startswith(f"| {start} |")]
    assert len(lines) == 1
    return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]


def cell(right: int, count: int) -> str:
    """A number as the card writes it."""
    share = f"{100 * right / count:.1f}".removesuffix(".0") if right == count else f"{100 * right / count:.1f}"
    return f"{share}% of {count}"


@pytest.mark.parametrize(
    "start,file",
    [
        ("server, stock MXFP4 experts", "server-stock.json"),
        ("server, W2 only", "server-w2.json"),
        ("server, W2 with FP4 correction", "server-fp4.json"),
    ],
)
def test_server_rows(start: str, file: str) -> None:
    kinds = json.loads((FOLDER / "results" / file).read_text())["kinds"]
    assert row(start) == [cell(kinds[kind]["right"], kinds[kind]["count"]) for kind in KINDS]
    assert all(len(kinds[kind]["wrong"]) == kinds[kind]["count"] - kinds[kind]["right"] for kind in KINDS)


@pytest.mark.parametrize("name,experts", [("MXFP4", "mxfp4"), ("W2", "w2")])
def test_trainer_rows(name: str, experts: str) -> None:
    last = json.loads((FOLDER / "results" / "training.jsonl").read_text().splitlines()[-1])
    shares = last["final"]["held_out"][experts]
    wanted = [cell(round(128 * shares[kind]), 128) for kind in ("arithmetic", "call")]
    assert [row(f"trainer's own forward, {name}")[i] for i in (0, 2)] == wanted


def test_correction_rows() -> None:
    points = json.loads((FOLDER / "results" / "correction-slots.json").read_text())["points"]
    for point in points:
        wanted = [
            f"{100 * point['hit_rate']:.1f}%",
            f"{point['mean_distance']:.5f}",
            f"{point['distance_at_99_percent']:.4f}",
            f"{100 * point['exact_answers']:.1f}%",
        ]
        assert row(str(point["slots"])) == wanted


def test_exclusion_numbers() -> None:
    document = json.loads((FOLDER / "results" / "exclusion.json").read_text())
    text = " ".join((FOLDER / "CARD.md").read_text().split())
    control = document["control_without_exclusions"]
    assert f"{document['excluded']['requests']:,} requests with layers 0 to 2 excluded" in text
    assert f"filled all {document['slots']} slots" in text
    assert f"{control['read_errors']} read errors in {control['requests']} requests" in text


def test_the_promised_floors_hold() -> None:
    for file, floor in (("server-stock.json", 0.98), ("server-w2.json", 0.95)):
        measured = json.loads((FOLDER / "results" / file).read_text())["kinds"]["arithmetic"]
        assert measured["accuracy"] >= floor and measured["count"] >= 200
