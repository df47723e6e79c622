"""The parser benchmark measures what it says: both parsers, the same pieces, one ratio."""

from __future__ import annotations

import json

from bench import dsml
from validation import dsml_local


def test_rates_come_from_one_clock_and_make_the_ratio():
    seconds = {"upstream": 0.2, "ours": 0.1}
    asked: list[tuple[str, int]] = []

    def timer(which, pieces, _):
        asked.append((which, len(pieces)))
        return seconds[which]

    text = "x" * 20_000
    row = dsml.measure({"one": text}, 3, timer)["one"]
    assert (row["characters"], row["upstream_characters_per_second"], row["ours_characters_per_second"]) == (
        20_000, 100_000, 200_000,
    )  # fmt: skip
    assert row["ratio"] == 2.0
    # Four rounds, the first for warmth; who goes first alternates.
    assert [which for which, _ in asked] == ["ours", "upstream", "upstream", "ours"] * 2
    assert len({pieces for _, pieces in asked}) == 1


def test_the_outputs_are_what_a_model_writes():
    asked = dsml_local.request(dsml.TOOLS)
    for name, text in dsml.workloads(1).items():
        answer = dsml_local.whole("ours", text, asked)
        assert answer == dsml_local.whole("ours", text, asked)
        if "no call" in name:
            assert not answer.calls and answer.content
        else:
            assert answer.calls and all(json.loads(a)["path"] == "src/a.py" for _, a in answer.calls)
            assert "DSML" not in (answer.content or "")


def test_the_documents_table_is_the_result_files():
    rows = json.loads(dsml.RESULT.read_text(encoding="utf-8"))["rows"]
    assert dsml.render(rows) in (dsml.ROOT / "docs" / "dsml.md").read_text(encoding="utf-8")
    assert all(row["ratio"] >= 1 for row in rows.values())
