"""Audits of two ranks: a file each, and judged together."""

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from generators import TINY, write_checkpoint
from test_audit import DEVICE, RECIPE, SERVING

from moet_w2 import audit_ranks, cli
from moet_w2.audit import Audit
from moet_w2.cache import phases
from moet_w2.config import W2Config
from moet_w2.errors import AuditError
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard
from moet_w2.placement import plan

TWO = copy.deepcopy(RECIPE)
TWO.engine = RECIPE.engine | {"tensor-parallel-size": 2}
TWO.expect = SimpleNamespace(**vars(RECIPE.expect) | {"mapped_bytes": 2 * TINY.nbytes})
"""A recipe of a model whose experts are twice as wide as TINY."""


@pytest.fixture
def written(tmp_path: Path, layers) -> Path:
    """What two ranks of one start write."""
    path = tmp_path / "audit.json"
    for rank in (0, 1):
        placement = plan(W2Config(True, (1,), (0,)), 2)
        record = Audit(audit_ranks.place(path, rank), placement, DEVICE, shard=Shard(rank, 2), server="abc")
        for layer in layers:
            record.created(layer, 0)
        for layer in layers:
            record.loaded(layer, 0)
        record.started(SERVING)
    return path


def change(path: Path, name: str, value: object) -> None:
    document = json.loads(path.read_text())
    *parents, last = name.split(".")
    here = document
    for part in parents:
        here = here[int(part)] if part.isdecimal() else here[part]
    here[last] = value
    path.write_text(json.dumps(document))


def test_ranks_do_not_write_over_each_other(written: Path) -> None:
    assert sorted(file.name for file in written.parent.iterdir()) == ["audit.json", "audit.rank-1.json"]
    documents = audit_ranks.load(written)
    assert [document["tensor_parallel"]["rank"] for document in documents] == [0, 1]
    assert audit_ranks.check(documents, TWO) == []


def test_a_worker_writes_to_its_own_ranks_file(fresh_runtime, tmp_path: Path, monkeypatch) -> None:
    write_checkpoint(tmp_path / "model", geometry=LayerGeometry(4, 256, 256))
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_AUDIT_PATH", str(tmp_path / "audit.json"))
    here = fresh_runtime(rank=1, size=2)
    assert here.audit.path == tmp_path / "audit.rank-1.json"
    assert (here.audit.shard, here.audit.server) == (Shard(1, 2), "start")


def test_a_single_rank_is_judged_as_ever(tmp_path: Path, layers) -> None:
    record = Audit(tmp_path / "audit.json", plan(W2Config(True, (1,), (0,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    for layer in layers:
        record.loaded(layer, 0)
    record.started(SERVING)
    documents = audit_ranks.load(record.path)
    assert len(documents) == 1 and audit_ranks.check(documents, RECIPE) == []
    assert audit_ranks.check(documents, TWO)[0] == f"audit: mapped bytes is {TINY.nbytes}, the recipe expects " + str(
        2 * TINY.nbytes
    )


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("tensor_parallel.server", "xyz", "rank 1 is of another start than rank 0; remove the old files"),
        ("mapped_bytes", 5, "rank 1: mapped bytes is 5, the recipe expects"),
        ("w2_bytes", 5, "w2_bytes is 5 on rank 1"),
        ("configured_mapped_layers", [0], r"configured_mapped_layers is \[0\] on rank 1, \[1\] on rank 0"),
        ("state", "loaded", "rank 1: state is loaded, the recipe expects ready"),
        ("layers.0.redundant_bytes", 7, "rank 1: layer 0: redundant bytes are 7"),
    ],
)
def test_a_drift_of_the_second_rank_is_found(written: Path, name: str, value: object, named: str) -> None:
    change(audit_ranks.place(written, 1), name, value)
    problems = audit_ranks.check(audit_ranks.load(written), TWO)
    assert any(re.search(named, problem) for problem in problems), problems


def test_every_rank_must_have_left_its_file(written: Path) -> None:
    audit_ranks.place(written, 1).unlink()
    with pytest.raises(AuditError, match="rank-1.json does not exist"):
        audit_ranks.load(written)


def test_a_file_of_another_rank_is_refused(written: Path) -> None:
    with pytest.raises(AuditError, match="is of rank 1, not 0; give the file of rank 0"):
        audit_ranks.load(audit_ranks.place(written, 1))


def test_what_an_earlier_start_left_of_any_rank_is_removed(written: Path) -> None:
    for rank in range(3):
        audit_ranks.place(written, rank).with_suffix(phases.SUFFIX).write_text("{}")
    kept = written.with_name("audit.other.json")
    kept.write_text("{}")
    audit_ranks.remove(written)
    assert list(written.parent.iterdir()) == [kept]


def test_of_several_files_none_is_removed_where_one_is_no_audit(written: Path) -> None:
    audit_ranks.place(written, 1).write_text("notes of mine")
    with pytest.raises(AuditError, match="rank-1.json is no audit"):
        audit_ranks.remove(written)
    assert written.exists()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.write_text("[" * 200_000)])
def test_what_is_no_audit_is_told_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(path := tmp_path / "audit.json")
    with pytest.raises(AuditError, match="audit.json is no audit, and a start would replace it; set W2_AUDIT_PATH"):
        audit_ranks.remove(path)
    assert path.exists()


def test_an_audit_that_cannot_be_read_is_left(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(AuditError, match=r"cannot be read \(Permission denied\), and a start would replace it"):
        audit_ranks.remove(written)
    assert written.exists()


def test_names_that_only_begin_like_those_of_ranks_are_somebody_elses(written: Path) -> None:
    others = {written.with_name(f"audit.rank-{name}.json") for name in ("ings", "1.old", "of-mine.startup")}
    for other in others:
        other.write_text("notes of mine")
    audit_ranks.remove(written)
    assert set(written.parent.iterdir()) == others


def test_all_ranks_are_shown(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "show", str(written)]) == 0
    shown = capsys.readouterr().out
    assert "rank             0 of 2" in shown and "rank             1 of 2" in shown
