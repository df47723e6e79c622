import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from generators import TINY, device_layer

from moet_w2 import audit, cli
from moet_w2.audit import Audit
from moet_w2.config import W2Config
from moet_w2.errors import AuditError
from moet_w2.placement import plan

DEMO = Path(__file__).resolve().parents[2] / "bench" / "recipes" / "demo-cpu.yaml"
DEVICE = {"type": "cpu", "name": "test", "pci": None, "numa": {"node": 0, "nodes": [0], "reason": "the only node"}}
POOL = {"policy": "freq", "slots": 3, "row_bytes": 10, "bytes": 30, "prefill": True}
SERVING = {
    "profile": "mine",
    "max_model_len": 64,
    "kv_cache_tokens": 128,
    "kv_cache_dtype": "fp8",
    "block_size": 16,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "prefix_caching": True,
    "gpu_memory_utilization": 0.9,
    "speculative": {"method": "dspark", "tokens": 4},
    "graph_mode": "FULL_AND_PIECEWISE",
    "attention_backends": ["SPARSE"],
    "expert_kernels": "cubins sm_90a",
    "seconds": {"planes": 1.5, "draft rest": None},
    "seconds_since_process_start": 9.0,
}
ENGINE = {
    "max-num-seqs": 4,
    "enable-prefix-caching": True,
    "speculative-config": {"method": "dspark", "num_speculative_tokens": 4},
    "compilation-config": '{"cudagraph_mode": "FULL_AND_PIECEWISE"}',
}
RECIPE = SimpleNamespace(
    name="mine",
    digest="of a file",
    model=SimpleNamespace(synthetic=False),
    engine=ENGINE,
    expect=SimpleNamespace(mapped_layers=(1,), mapped_bytes=TINY.nbytes, w2_layers=2, max_model_len=64),
    w2=SimpleNamespace(exclude_layers=(0,), correction=SimpleNamespace(gb=0, policy="freq", prefill_fp4=True)),
)


@pytest.fixture
def written(tmp_path: Path, layers) -> Path:
    record = Audit(tmp_path / "deep" / "audit.json", plan(W2Config(True, (1,), (0,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    record.loaded(layers[0], redundant_bytes=0)
    assert not record.path.exists()  # one layer of two is no audit yet
    record.loaded(layers[1], redundant_bytes=0)
    assert audit.load(record.path)["state"] == "loaded"
    record.started(SERVING)
    return record.path


@pytest.fixture(scope="module")
def document(layers) -> dict:
    """An audit that holds; tests change copies."""
    record = Audit(None, plan(W2Config(True, (1,), (0,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    for layer in layers:
        record.loaded(layer, 0)
    record.started(SERVING)
    return record.document()


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
    record = loaded(tmp_path / "audit.json", layers)
    record.dispatched(layers[0])
    assert not any(layer["first_dispatch_unix"] for layer in audit.load(record.path)["layers"])
    record.dispatched(layers[1])
    assert all(layer["first_dispatch_unix"] for layer in audit.load(record.path)["layers"])


def test_no_path_writes_nothing(layers) -> None:
    record = Audit(None, plan(W2Config(), 2), DEVICE)
    record.created(layers[0], 0)
    record.loaded(layers[0], 0)
    assert record.document()["state"] == "loaded"


def loaded(path: Path, layers) -> Audit:
    """A record of complete layers, before the engine can serve."""
    record = Audit(path, plan(W2Config(True, (1,), (0,)), 2), DEVICE)
    for layer in layers:
        record.created(layer, 0)
    for layer in layers:
        record.loaded(layer, 0)
    return record


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
        ("layers.0.origin", "synthetic", r"layer 0: its weights are made up \(origin synthetic\)"),
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
def test_every_drift_is_found(document: dict, path: str, value: object, named: str) -> None:
    if path.endswith("pages_by_node"):
        document = drift(document, "layers.1.host.pages_note", "")
    problems = "\n".join(audit.check(drift(document, path, value), RECIPE))
    assert re.search(named, problems), problems


def test_a_pool_of_another_size_is_found(document: dict) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe.w2.correction.gb = 35 / 2**30
    assert audit.check(drift(document, "correction", POOL), recipe) == []
    smaller = drift(document, "correction", POOL | {"slots": 2, "bytes": 20})
    assert audit.check(smaller, recipe) == ["audit: correction bytes is 20, the recipe expects 30"]
    assert audit.check(document, recipe)  # none at all
    other = drift(document, "correction", POOL | {"policy": "lru", "prefill": False})
    assert audit.check(other, recipe) == [
        "audit: correction policy is lru, the recipe expects freq",
        "audit: FP4 in prefill is False, the recipe expects True",
    ]


def test_a_pool_that_takes_what_is_left_only_has_to_be_there(document: dict) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe.w2.correction.gb = "auto"
    assert audit.check(drift(document, "correction", POOL), recipe) == []
    problems = audit.check(document, recipe)
    assert problems == ["audit: correction bytes is 0, the recipe expects more than none"]


def test_a_missing_layer_is_found(document: dict) -> None:
    document = copy.deepcopy(document)
    document["layers"].pop(0)
    assert any("W2 layers is 1" in line for line in audit.check(document, RECIPE))


def test_a_recipe_that_is_synthetic_wants_weights_that_are_made_up(document: dict) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe.model.synthetic = True
    problems = audit.check(document, recipe)
    assert problems[0] == "audit: layer 0: its weights are of a checkpoint, the recipe is synthetic"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("serving", None, "facts of the start is missing"),
        ("serving.profile", "another", "profile is another, the recipe expects mine"),
        ("serving.max_model_len", 65, "max_model_len is 65, the recipe expects 64"),
        ("serving.speculative", None, r"speculative decoding is None, the recipe expects {'method': 'dspark', 'tok"),
        ("serving.speculative.tokens", 5, "speculative decoding is .*'tokens': 5"),
        ("serving.graph_mode", "NONE", "graph mode is NONE, the recipe expects FULL_AND_PIECEWISE"),
        ("serving.max_num_seqs", 3, "max-num-seqs is 3, the recipe expects 4"),
        ("serving.prefix_caching", False, "enable-prefix-caching is False"),
        ("tensor_parallel.size", 2, "ranks is 2, the recipe expects 1"),
    ],
)
def test_an_engine_that_is_not_the_recipes_is_found(document: dict, path: str, value: object, named: str) -> None:
    problems = audit.check(drift(document, path, value), RECIPE)
    assert any(re.search(named, problem) for problem in problems), problems


def test_what_a_recipe_leaves_open_is_not_judged(document: dict) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe.engine = {"speculative-config": ENGINE["speculative-config"]}
    document = drift(document, "serving.graph_mode", "NONE")
    assert audit.check(drift(document, "serving.profile", None), recipe) == []
    recipe.engine["enforce-eager"] = True
    assert audit.check(document, recipe) == []
    recipe.digest, recipe.engine = "", {}  # made of flags
    assert audit.check(drift(document, "serving.profile", "another"), recipe) == []


# ---- the gate of a start


def redundant(record: Audit) -> None:
    record._layers[0]["redundant_bytes"] = 5


def unplaced(record: Audit) -> None:
    record.plan = plan(W2Config(True, (0, 1)), 2)


def absent(record: Audit) -> None:
    del record._layers[1]


def incomplete(record: Audit) -> None:
    record._layers[1]["state"] = "loading"


def misplaced(record: Audit) -> None:
    record._layers[1]["host"] |= {"pages_by_node": {"0": 1, "1": 1}, "pages_note": "two nodes"}


def on_the_device_too(record: Audit) -> None:
    record._layers[1]["allocator_bytes"] = 4096


def half_a_row(record: Audit) -> None:
    record.correction = POOL | {"bytes": 25}


def corrected(record: Audit) -> None:
    record._layers[0]["correctable"] = True


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (redundant, "redundant GPU W2 bytes: 5, expected 0 (and 1 more)"),
        (unplaced, "allocated mapped layers: [1], expected [0, 1]"),
        (absent, "W2 layers: 1, expected 2 (and 1 more)"),
        (incomplete, "layers that are not complete: [1], expected []"),
        (misplaced, "layer 1: pages on several nodes: {'0': 1, '1': 1}"),
        (on_the_device_too, "layer 1: mapped, yet it took 4096 device bytes"),
        (half_a_row, "correction bytes: 25, expected 30"),
        (corrected, "correctable layers among those excluded: [0], expected []"),
    ],
)
def test_a_broken_rule_ends_the_start_in_one_line(tmp_path: Path, layers, spoil, named: str) -> None:
    record = loaded(tmp_path / "audit.json", layers)
    spoil(record)
    with pytest.raises(AuditError) as failure:
        record.started(SERVING)
    line = str(failure.value)
    assert line == f"the start ends, {named}; see {record.path}" and "\n" not in line
    document = audit.load(record.path)
    assert document["serving"]["problems"] and document["state"] != "ready"


def test_a_kv_cache_that_is_too_small_for_one_request_ends_the_start(tmp_path: Path, layers) -> None:
    record = loaded(tmp_path / "audit.json", layers)
    with pytest.raises(AuditError, match="the KV cache holds 63 tokens, 64 are admitted; lower --max-model-len"):
        record.started(SERVING | {"kv_cache_tokens": 63})
    assert audit.load(record.path)["state"] == "refused"
    record.started(SERVING | {"kv_cache_tokens": None})
    assert audit.load(record.path)["state"] == "ready"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tensor_parallel.size", 0),
        ("serving.surprise", 1),
        ("serving.kv_cache_tokens", "many"),
        ("state", "done"),
        ("surprise", 1),
        ("layers.0.surprise", 1),
        ("layers.0.bytes", -1),
        ("layers", []),
    ],
)
def test_a_document_that_breaks_the_schema_is_refused(written: Path, path: str, value: object) -> None:
    written.write_text(json.dumps(drift(audit.load(written), path, value)))
    with pytest.raises(AuditError, match="breaks its schema at .*; start the server again, which writes a new one$"):
        audit.load(written)


AGAIN = "start the server again, which writes a new one"
UNREADABLE = {
    "missing": (lambda path: path.unlink(), "does not exist; is the server that writes it up?"),
    "a folder": (
        lambda path: (path.unlink(), path.mkdir()),
        "cannot be read (Is a directory); name the file in W2_AUDIT_PATH",
    ),
    "truncated": (
        lambda path: path.write_text(path.read_text()[:-100]),
        f"cannot be read as JSON (*); copy it again, or {AGAIN}",
    ),
    "empty": (lambda path: path.write_text(""), f"cannot be read as JSON (*); copy it again, or {AGAIN}"),
    "not text": (lambda path: path.write_bytes(b"\xff"), f"cannot be read as JSON (*); copy it again, or {AGAIN}"),
    "of an older moet": (
        lambda path: respell(path, "schema_version", 2),
        f"is of schema version 2, this moet reads 3; read it with the moet that served, or {AGAIN}",
    ),
    "without a version": (
        lambda path: respell(path, "schema_version", None),
        f"is of schema version None, this moet reads 3; read it with the moet that served, or {AGAIN}",
    ),
    "with a long value in the wrong place": (
        lambda path: respell(path, "tensor_parallel", {"x": "y" * 5000}),
        f"breaks its schema at $.tensor_parallel: *; {AGAIN}",
    ),
}
FOREIGN = {
    "another document": lambda path: path.write_text('{"schema": "moet.smoke", "schema_version": 3}'),
    "a list": lambda path: path.write_text("[]"),
}


def respell(path: Path, name: str, value: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


def told(path: Path, capsys, verb: str) -> str:
    """The one line that moet audit ends with."""
    more = ["--recipe", str(DEMO)] if verb == "check" else []
    assert cli.main(["audit", verb, str(path), *more]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and len(line) < 600
    return line


@pytest.mark.parametrize("verb", ["show", "check"])
@pytest.mark.parametrize("fault", UNREADABLE)
def test_an_audit_that_cannot_be_read_is_one_line_with_a_remedy(written: Path, capsys, verb: str, fault: str) -> None:
    spoil, said = UNREADABLE[fault]
    spoil(written)
    line = re.escape(f"moet: error: audit {written} {said}").replace(r"\*", ".+")
    assert re.fullmatch(line, told(written, capsys, verb))


@pytest.mark.parametrize("verb", ["show", "check"])
@pytest.mark.parametrize("fault", FOREIGN)
def test_what_is_no_audit_is_called_so(written: Path, capsys, verb: str, fault: str) -> None:
    FOREIGN[fault](written)
    why = f"{written} is no audit: its schema is not moet.audit; name the file in W2_AUDIT_PATH"
    assert told(written, capsys, verb) == f"moet: error: {why}"


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


def test_summary_names_what_a_person_asks_for(document: dict) -> None:
    text = audit.summary(document)
    for line in (
        "state            ready",
        "profile          mine",
        f"mapped layers    1, {TINY.nbytes:,} bytes",
        "redundant bytes  0",
        "correction       none",
        "admission        64 tokens a request",
        "KV cache         128 tokens as vLLM reports them, fp8",
        "scheduler        4 sequences, 32 tokens a step, prefix caching on",
        "speculation      dspark, 4 tokens",
        "graphs           FULL_AND_PIECEWISE",
        "kernels          experts: cubins sm_90a; attention: SPARSE",
        "seconds          planes 1.5; 9.0 in all",
    ):
        assert line in text.splitlines(), text


def test_summary_names_the_unvalidated_kernels(document: dict) -> None:
    text = audit.summary(drift(document, "device.block_scaled", True))
    assert "kernels          experts: cubins sm_90a, block-scaled up to 8 tokens; attention: SPARSE" in text


def test_summary_of_an_audit_before_the_engine_serves(document: dict) -> None:
    text = audit.summary(drift(document, "serving", None) | {"correction": POOL, "state": "loaded"})
    assert "correction       3 slots, 30 bytes, policy freq, excluded layers 0" in text
    assert "admission" not in text and "state            loaded" in text


def test_summary_of_a_refused_start_says_why(document: dict) -> None:
    refused = drift(document, "serving.problems", ["audit: too few"])
    assert "problem          audit: too few" in audit.summary(refused)
