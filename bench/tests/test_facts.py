"""What a result file says of the tree that it was measured with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import facts


@pytest.mark.parametrize(("said", "dirty"), [("a" * 40, False), ("a" * 40 + "-dirty", True)])
def test_whoever_copies_the_tree_to_a_host_says_what_it_is(
    said: str, dirty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOET_BENCH_COMMIT", said)
    provenance = facts.provenance()
    assert (provenance["commit"], provenance["dirty"]) == ("a" * 40, dirty)


def test_otherwise_git_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOET_BENCH_COMMIT", raising=False)
    monkeypatch.setattr(facts, "_git", lambda *arguments: "b" * 40 if "HEAD" in arguments else " M a-file")
    provenance = facts.provenance()
    assert (provenance["commit"], provenance["dirty"]) == ("b" * 40, True)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--layers", "5", "--out", "here.json"], ["--layers", "5"]),
        (["--out=here.json", "speed"], ["speed"]),
        (["--dir", "/a/folder", "--repeats", "3"], ["--dir", "FOLDER", "--repeats", "3"]),
    ],
)
def test_a_machine_s_folders_stay_out_of_the_command(given: list[str], kept: list[str]) -> None:
    assert facts._arguments(given) == kept
