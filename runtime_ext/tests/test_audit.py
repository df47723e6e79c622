import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from generators import TINY, device_layer

from moet_w2 import audit
from moet_w2.audit import Audit
from moet_w2.config import W2Config
from moet_w2.errors import AuditError
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import W2Layer
from moet_w2.placement import Placement, plan
from moet_w2.topology import Locality

DEVICE = {"type": "cpu", "name": "test", "pci": None, "numa": {"node": 0, "nodes": [0], "reason": "the only node"}}
POOL = {"policy": "freq", "slots": 3, "row_bytes": 10, "bytes": 30, "prefill": True}
RECIPE = SimpleNamespace(
    expect=SimpleNamespace(mapped_layers=(1,), mapped_bytes=TINY.nbytes, w2_layers=2, max_model_len=64),
    w2=SimpleNamespace(exclude_layers=(0,), correction=SimpleNamespace(gb=0)),
)


@pytest.fixture
def layers():
    host = HostAllocation("layer 1", TINY.nbytes, Locality(0, (0,), "the only node"))
    yield device_layer(TINY, key=0), W2Layer(1, TINY, Placement.MAPPED, host.tensor(), host)
    host.close()


@pytest.fixture
def written(tmp_path: Path, layers) -> Path:
    record = Audit(tmp_path / "deep" / "audit.json", plan(W2Config(True, (1,), (0,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    record.loaded(layers[0], redundant_bytes=0)
    assert not record.path.exists()  # one layer of two is no audit yet
    record.loaded(layers[1], redundant_bytes=0)
    return record.path


def test_a_finished_audit_keeps_its_schema_and_its_recipe(written: Path) -> None:
    document = audit.load(written)
    assert document["state"] == "ready"
    assert document["w2_bytes"] == 2 * TINY.nbytes and document["mapped_bytes"] == TINY.nbytes
    assert [layer["correctable"] for layer in document["layers"]] == [False, True]
    assert audit.check(document, RECIPE) == []
    assert list(written.parent.iterdir()) == [written]  # no temporary file stays


def test_addresses_are_where_the_bytes_are(written: Path, layers) -> None:
    device, mapped = audit.load(written)["layers"]
    assert device["address"] == layers[0].storage.data_ptr() and device["host"] is None
    assert mapped["address"] == mapped["host"]["address"] == layers[1].storage.data_ptr()
    assert mapped["host"]["locked_bytes"] >= TINY.nbytes


def test_first_dispatch_is_written_once_every_layer_has_computed(tmp_path: Path, layers) -> None:
    record = Audit(tmp_path / "audit.json", plan(W2Config(True, (1,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    for layer in layers:
        record.loaded(layer, 0)
    record.dispatched(layers[0])
    assert not any(layer["first_dispatch_unix"] for layer in audit.load(record.path)["layers"])
    record.dispatched(layers[1])
    assert all(layer["first_dispatch_unix"] for layer in audit.load(record.path)["layers"])


def test_no_path_writes_nothing(layers) -> None:
    record = Audit(None, plan(W2Config(), 2), DEVICE)
    record.created(layers[0], 0)
    record.loaded(layers[0], 0)
    assert record.document()["state"] == "ready"


def drift(document: dict, path: str, value: object) -> dict:
    changed = copy.deepcopy(document)
    *parents, last = path.split(".")
    here = changed
    for part in parents:
        here = here[int(part)] if part.isdecimal() else here[part]
    here[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("state", "loading", "state is loading"),
        ("quantizer.abi", 99, "quantizer abi is 99"),
        ("quantizer.zero_mode", "plus", "zero mode is plus"),
        ("configured_mapped_layers", [0], r"configured mapped layers is \[0\]"),
        ("allocated_mapped_layers", [], r"allocated mapped layers is \[\]"),
        ("mapped_bytes", 1, "mapped bytes is 1"),
        ("redundant_gpu_w2_bytes", 5, "redundant GPU W2 bytes is 5"),
        ("uncorrected_layers", [1], r"uncorrected layers is \[1\]"),
        ("correction", POOL, "correction bytes is 30, the recipe expects 0"),
        ("layers.0.origin", "dummy", r"layer 0: its weights are made up \(--load-format dummy\)"),
        ("layers.0.redundant_bytes", None, "layer 0: redundant bytes are None"),
        ("layers.0.parts.sc13.offset", 3, "layer 0: sc13 begins at 3"),
        ("layers.0.bytes", 3, "layer 0: its parts end at"),
        ("layers.1.allocator_bytes", 4096, "layer 1: mapped, yet it took 4096 device bytes"),
        ("layers.1.host.uva_equal", False, "layer 1: the device's pointer is not the host's"),
        ("layers.1.host", None, "layer 1: placement mapped and its host record disagree"),
        ("layers.0.placement", "mapped", "layer 0: placement mapped and its host record disagree"),
        ("layers.1.host.pages_by_node", {"0": 1}, "layer 1: 1 pages verified"),
        ("layers.1.host.pages_by_node", {"0": 1, "1": 1}, "layer 1: pages on several nodes"),
    ],
)
def test_every_drift_is_found(written: Path, path: str, value: object, named: str) -> None:
    document = audit.load(written)
    if path.endswith("pages_by_node"):
        document = drift(document, "layers.1.host.pages_note", "")
    problems = "\n".join(audit.check(drift(document, path, value), RECIPE))
    assert re.search(named, problems), problems


def test_a_pool_of_another_size_is_found(written: Path) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe.w2.correction.gb = 35 / 2**30
    assert audit.check(drift(audit.load(written), "correction", POOL), recipe) == []
    smaller = drift(audit.load(written), "correction", POOL | {"bytes": 20})
    assert audit.check(smaller, recipe) == ["audit: correction bytes is 20, the recipe expects 30"]
    assert audit.check(audit.load(written), recipe)  # none at all


def test_a_missing_layer_is_found(written: Path) -> None:
    document = audit.load(written)
    document["layers"].pop(0)
    assert any("W2 layers is 1" in line for line in audit.check(document, RECIPE))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 2),
        ("state", "done"),
        ("surprise", 1),
        ("layers.0.surprise", 1),
        ("layers.0.bytes", -1),
        ("layers", []),
    ],
)
def test_a_document_that_breaks_the_schema_is_refused(written: Path, path: str, value: object) -> None:
    written.write_text(json.dumps(drift(audit.load(written), path, value)))
    with pytest.raises(AuditError, match="breaks its schema at"):
        audit.load(written)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="does not exist"):
        audit.load(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"schema": ')
    with pytest.raises(AuditError, match="cannot be read as JSON"):
        audit.load(tmp_path / "half.json")


def test_a_reader_never_sees_half_an_audit(written: Path, monkeypatch) -> None:
    before = written.read_bytes()
    record = Audit(written, plan(W2Config(), 1), DEVICE)
    record.created(device_layer(TINY), 0)

    def disk_full(document, file, **options):
        file.write("{")
        raise OSError("disk full")

    monkeypatch.setattr(json, "dump", disk_full)
    with pytest.raises(OSError, match="disk full"):
        record.write()
    assert written.read_bytes() == before


def test_summary_names_what_a_person_asks_for(written: Path) -> None:
    text = audit.summary(audit.load(written))
    assert f"mapped layers    1, {TINY.nbytes:,} bytes" in text and "redundant bytes  0" in text
