"""What lint holds of results, recipes and boxes: each rule with what breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import bench_samples as samples
import pytest
from bench_samples import facts
from runner import boxes, lint, schema, tables
from runner.fault import BenchError
from runner.library import Library


def faults(library: Library) -> list[str]:
    return [str(finding) for finding in lint.check(library) if finding.fault]


def test_a_result_as_it_was_written_passes(tmp_path: Path) -> None:
    library = samples.checkout(tmp_path, samples.served())
    assert faults(library) == []
    notes = [str(finding) for finding in lint.check(library)]
    assert len(notes) == 3 and all("no digest" in note for note in notes)  # the older files


def test_this_checkout_passes() -> None:
    assert faults(Library(samples.ROOT)) == []


def test_a_result_edited_by_hand_is_caught(tmp_path: Path) -> None:
    samples.checkout(tmp_path, samples.served())
    path = tmp_path / "bench" / "results" / "serving_0.json"
    text = path.read_text()
    assert text.count('"decode_tokens_per_s": 90.0') == 1
    path.write_text(text.replace('"decode_tokens_per_s": 90.0', '"decode_tokens_per_s": 95.0'))
    (found,) = faults(Library(tmp_path))
    assert "serving_0.json: edited: payload_sha256" in found
    path.write_text(json.dumps(json.loads(text)))  # other spaces are no edit
    assert faults(Library(tmp_path)) == []


def test_a_result_of_a_held_card_is_held_to_the_same_and_stands_in_no_table_of_rates(tmp_path: Path) -> None:
    samples.checkout(tmp_path)
    (tmp_path / "bench" / "results" / "held").mkdir()
    samples.store(tmp_path, facts.sealed(samples.served(rate=90.0)), "held/serving_0.json")
    library = Library(tmp_path)
    assert faults(library) == []
    assert [result.name for result in library.held] == ["held/serving_0.json"]
    assert "held/serving_0.json" in "\n".join(tables.results(library, str))
    assert "90.0" not in "\n".join(tables.profiles(library, str))
    samples.store(tmp_path, facts.sealed(samples.served()) | {"ready_seconds": 1.0}, "held/serving_0.json")
    (found,) = faults(Library(tmp_path))
    assert found.startswith("fault  bench/results/held/serving_0.json: edited")


def test_a_recipe_that_differs_from_the_one_served_is_caught_or_its_reason_told(tmp_path: Path) -> None:
    samples.checkout(tmp_path, samples.served())
    recipe = tmp_path / "bench" / "recipes" / "h200-512k.yaml"  # h200-300k extends it
    recipe.write_text(recipe.read_text().replace("0.666 ", "0.660 "))
    (found,) = faults(Library(tmp_path))
    assert "recipe h200-300k differs from the one served; measure again, or say why" in found
    notes = tmp_path / "bench" / "results" / "notes.yaml"
    notes.write_text("serving_0.json: {recipe: the budget was lowered later}\n")
    library = Library(tmp_path)
    assert faults(library) == []
    assert any("let pass: the budget was lowered later" in str(finding) for finding in lint.check(library))
    notes.unlink()
    recipe.write_text("name: [")
    assert any("there is no recipe 'h200-300k' that can be read" in fault for fault in faults(Library(tmp_path)))


def test_a_recipe_that_serving_derives_is_derived_again(tmp_path: Path) -> None:
    document = samples.served() | {"configuration": "h200-300k-plain"}
    document["recipe_sha256"] = Library(samples.ROOT).digest_now("h200-300k-plain")
    assert document["recipe_sha256"] != samples.served()["recipe_sha256"]
    library = samples.checkout(tmp_path, document)
    # The derivation reads the model's folder, which this small checkout shares with the real one.
    assert Library(samples.ROOT).digest_now("h200-300k-plain") == document["recipe_sha256"]
    assert library.digest_now("nothing-plain") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["provenance"].pop("dirty"), "'dirty' is a required property"),
        (lambda one: one["provenance"].update(commit=None), "None is not of type 'string'"),
        (lambda one: one.update(kv_tokens=5), "'kv_tokens' was unexpected"),
        (lambda one: one["reported"].update(admission_tokens=5), "'admission_tokens' was unexpected"),
        (lambda one: one["configured"].update(kv_cache_tokens=5), "'kv_cache_tokens' was unexpected"),
        (lambda one: one.pop("exercised"), "'exercised' is a required property"),
        (lambda one: one["phases"]["decode_1x1024"].pop("client"), "'client' is a required property"),
        (
            lambda one: one["phases"]["decode_1x1024"]["client"].update(acceptance=2.0),
            "'acceptance' was unexpected",
        ),
        (lambda one: one.pop("stop"), "'stop' is a required property"),
        (lambda one: one.update(schema=2), "1 was expected"),
    ],
)
def test_fields_that_are_missing_or_in_the_wrong_part_are_caught(tmp_path: Path, change, said: str) -> None:
    document = samples.served()
    change(document)
    found = faults(samples.checkout(tmp_path, document))
    assert found and any(said in fault for fault in found), found


def test_a_run_that_failed_needs_no_more_than_its_error() -> None:
    document = samples.served() | {"error": "RuntimeError: died"}
    for name in ("reported", "ready_seconds", "launcher_refused", "audit", "audit_at_end", "metrics", "stop"):
        document.pop(name)
    assert schema.violations(document) == []
    document.pop("error")
    assert schema.violations(document)


def test_uncommitted_changes_are_a_fault_unless_a_reason_is_given(tmp_path: Path) -> None:
    document = samples.served()
    document["provenance"]["dirty"] = True
    assert "measured with uncommitted changes" in faults(samples.checkout(tmp_path, document))[0]
    notes = tmp_path / "bench" / "results" / "notes.yaml"
    notes.write_text("serving_0.json: {dirty: documents only}\n")
    assert faults(Library(tmp_path)) == []


def test_notes_that_excuse_nothing_are_caught(tmp_path: Path) -> None:
    samples.checkout(tmp_path, samples.served())
    notes = tmp_path / "bench" / "results" / "notes.yaml"
    notes.write_text("serving_0.json: {dirty: x, recipe: y, mood: z}\nserving_9.json: {dirty: x}\n")
    found = " ".join(faults(Library(tmp_path)))
    for said in ("clean tree", "recipe as it is", "'mood' is none of", "no result serving_9.json"):
        assert said in found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: h200", "name: h300", "name a box as its file"),
        ("count: 1", "count: 0", "gpu.count"),
        ("h200-resident", "h200-nothing", "there is no recipe 'h200-nothing'"),
        ("h200-resident", "demo-cpu", "demo-cpu is made for another kind of device"),
        ("read_gb_per_s.ceiling", "read_gb_per_s.floor", "no such number"),
        ("kernels_h200.json", "kernels_h400.json", "no such number"),
        ("gpu: {", "gpus: {", "gpus: Extra inputs are not permitted"),
    ],
)
def test_a_box_that_says_something_impossible_is_caught(tmp_path: Path, old: str, new: str, said: str) -> None:
    samples.checkout(tmp_path)
    path = tmp_path / "bench" / "boxes" / "h200.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    assert any(said in fault for fault in faults(Library(tmp_path)))


def test_a_machine_is_told_by_its_gpu_and_cores() -> None:
    known = Library(samples.ROOT).boxes
    assert boxes.of(samples.HARDWARE, known).name == "h200"
    assert boxes.of(samples.HARDWARE | {"cores": 4}, known) is None
    assert boxes.of({"gpu": None, "cores": 2}, known).name == "two-cores"
    assert "it has 4 cores, not 16" in known["h200"].differs(samples.HARDWARE | {"cores": 4})


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    library = samples.checkout(tmp_path)
    (tmp_path / "bench" / "results" / "bad.json").write_text("{")
    with pytest.raises(BenchError, match="bad.json: .*; write it again by its command"):
        faults(library)


def test_writing_a_result_seals_it(tmp_path: Path) -> None:
    facts.write(tmp_path / "one.json", {"benchmark": "x", "values": (1, 2.5)})
    document = json.loads((tmp_path / "one.json").read_text())
    assert list(document)[-1] == facts.DIGEST and document[facts.DIGEST] == facts.digest(document)
    document["values"][0] = 3
    assert document[facts.DIGEST] != facts.digest(document)
