"""Blind grading: what a packet shows and hides, what a score is, and the committed grade made again byte for byte."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from validation.core import digest, manifest
from validation.core.errors import ReplayError
from validation.grading import packet, rubric, score
from validation.grading.rubric import Item

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "reasoning"
RULES, _ = rubric.load()
FULL = dict.fromkeys(RULES.dimensions, RULES.points)


@pytest.fixture
def graded(tmp_path):
    """A copy of the committed grading, to be spoiled."""
    return Path(shutil.copytree(FIXTURE / "grading", tmp_path / "grading"))


def sheet(folder: Path, grader: str = "someone", **items) -> Path:
    """A sheet with full points, less what ``items`` say."""
    key = json.loads((folder / "key.json").read_text())
    names = {place["item"].replace("+", "_"): label for label, place in key["labels"].items()}
    found = {label: {"points": FULL} for label in key["labels"]}
    for name, item in items.items():
        found[names[name]] = {"points": FULL} | item
    path = folder / f"{grader}.yaml"
    path.write_text(yaml.safe_dump({"grader": grader, "packet_sha256": key["packet_sha256"], "items": found}))
    return path


def test_the_committed_grade_is_made_again_byte_for_byte(graded, capsys):
    words = [str(graded), str(graded / "author.yaml")]
    code = score.main([*words, "--check", str(graded / "score.json")])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "") and "75.00 of 100, 90 pass" in told.out
    assert score.main([*words, "--out", str(graded / "again.json")]) == 1
    assert (graded / "again.json").read_bytes() == (FIXTURE / "grading" / "score.json").read_bytes()


def test_the_committed_packet_is_made_again_byte_for_byte(tmp_path):
    assert packet.main([str(FIXTURE / "demo"), "--out", str(tmp_path / "new")]) == 0
    for name in ("packet.txt", "key.json"):
        assert (tmp_path / "new" / name).read_bytes() == (FIXTURE / "grading" / name).read_bytes()


def test_a_sheet_that_is_not_there_is_called_a_sheet(graded, capsys):
    assert score.main([str(graded), str(graded / "none.yaml")]) == 2
    told = f"{graded / 'none.yaml'}: No such file or directory; name a sheet that is there"
    assert capsys.readouterr().err == f"score: error: {told}\n"


def test_the_committed_grade_is_of_the_committed_run():
    result = json.loads((FIXTURE / "grading" / "score.json").read_text())["runs"]
    document = manifest.read(FIXTURE / "demo")
    assert result[document["plan"]["run_id"]]["seal"] == document["seal"]


def test_full_points_pass(graded, capsys):
    assert score.main([str(graded), str(sheet(graded))]) == 0
    assert "100.00 of 100" in capsys.readouterr().out


def test_a_score_edited_by_hand_is_caught(graded, capsys):
    path = graded / "score.json"
    path.write_text(path.read_text().replace("75.00", "97.07"))
    assert score.main([str(graded), str(graded / "author.yaml"), "--check", str(path)]) == 1
    assert "is not what these sheets give" in capsys.readouterr().err


def test_a_grade_edited_by_hand_is_caught(graded, capsys):
    path = graded / "author.yaml"
    path.write_text(path.read_text().replace("reasoning: 0", "reasoning: 4"))
    assert score.main([str(graded), str(path), "--check", str(graded / "score.json")]) == 1
    assert "is not what these sheets give" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wrong-result", "no-result", "invented", "self-contradiction", "correction-ignored"])
def test_a_fatal_fault_caps_an_item(name):
    assert score.item_score([Item(points=FULL, fatals=[name])], RULES) == RULES.fatals[name].cap


def test_the_lowest_cap_holds_and_raises_nothing():
    assert score.item_score([Item(points=FULL, fatals=["invented", "no-result"])], RULES) == 10
    assert score.item_score([Item(points=dict.fromkeys(FULL, 0), fatals=["invented"])], RULES) == 0


def test_dimensions_count_by_their_weight():
    for name, dimension in RULES.dimensions.items():
        assert score.item_score([Item(points=FULL | {name: 0})], RULES) == 100 - dimension.weight
    assert score.item_score([Item(points=FULL | {"reasoning": 3})], RULES) == Fraction(375, 4)


def test_several_graders_are_averaged_and_half_of_them_make_a_fault_fatal():
    good, bad = Item(points=FULL), Item(points=FULL | {"form": 1}, fatals=["leaked"])
    assert score.item_score([good, good, bad], RULES) == 100 - Fraction(10 * 3, 4 * 3)
    assert score.item_score([good, bad], RULES) == 60


def test_the_correction_turn_weighs_sixty_percent():
    total, cases = score.run_score({"a": Fraction(100), "b": Fraction(50), "b+correction": Fraction(100)}, RULES)
    assert cases == {"a": 100, "b": 80} and total == 90


def test_halves_are_rounded_to_even():
    assert [score.told(Fraction(n, 1000)) for n in (5, 15, 97065)] == ["0.00", "0.02", "97.06"]


def test_a_fault_in_one_item_reaches_the_run(graded):
    result = score.score(graded, [sheet(graded, again_correction={"fatals": ["wrong-result"]})])
    (run,) = result["runs"].values()
    assert run["cases"] == {"again": "64.00", "difference": "100.00", "sum": "100.00"}
    assert (run["score"], run["exact"], run["passed"]) == ("88.00", "88", False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, label: d["items"].pop(label), "is not graded"),
        (lambda d, label: d["items"].update(Axxxxxxx={"points": FULL}), "is no item of the packet"),
        (lambda d, label: d["items"][label]["points"].update(form=5), "form = 5 is not from 0 to 4"),
        (lambda d, label: d["items"][label]["points"].update(form=3.5), "valid integer"),
        (lambda d, label: d["items"][label]["points"].pop("form"), "points are wanted for"),
        (lambda d, label: d["items"][label].update(fatals=["ugly"]), "ugly is no fatal fault"),
        (lambda d, label: d.update(packet_sha256="0" * 64), "grade that packet"),
        (lambda d, label: d.pop("grader"), "grader: Field required"),
    ],
)
def test_a_sheet_that_is_wrong_is_told(graded, capsys, change, words):
    path = sheet(graded)
    document = yaml.safe_load(path.read_text())
    change(document, min(document["items"]))
    path.write_text(yaml.safe_dump(document))
    assert score.main([str(graded), str(path)]) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_one_grader_counts_once(graded, capsys):
    assert score.main([str(graded), str(sheet(graded)), str(sheet(graded))]) == 2
    assert "name the same grader" in capsys.readouterr().err


def test_an_edited_packet_is_told(graded, capsys):
    path = graded / "packet.txt"
    path.write_text(path.read_text().replace("36", "37"))
    assert score.main([str(graded), str(graded / "author.yaml")]) == 2
    assert "was changed after it was made" in capsys.readouterr().err


def test_another_rubric_is_told(graded, capsys):
    path = graded / "key.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["rubric_sha256"], digest.of_text("other")))
    assert score.main([str(graded), str(graded / "author.yaml")]) == 2
    assert "the rubric has changed" in capsys.readouterr().err


def test_a_packet_hides_what_wrote_it():
    found, hidden = packet.items(FIXTURE / "demo")
    item = found[0]
    spoken = [("TASK", "Which vLLM?"), ("ANSWER", f"I am {hidden[0]}, a DeepSeek V4 on vllm with W2 experts.")]
    text = packet.render([packet.Item(item.run, item.case, 0, spoken)], hidden, RULES)
    answer = text.split("ANSWER (this one is graded):")[1].split("REFERENCE")[0]
    assert answer.split() == "I am [hidden], a [hidden] V4 on [hidden] with [hidden] experts.".split()
    assert "Which vLLM?" in text, "the task is the same for all and stays as it is"


def test_a_packet_shows_no_thinking_no_times_and_no_run():
    text = (FIXTURE / "grading" / "packet.txt").read_text()
    document = manifest.read(FIXTURE / "demo")
    assert "Ones: 7 + 8 = 15. Tens: 3 + 5 + 1 = 9. Answer: 95" not in text, "the demo's thinking"
    for word in (document["plan"]["run_id"], document["seal"], "moet", "chatcmpl", "usage", "seconds", "token"):
        assert word not in text
    key = json.loads((FIXTURE / "grading" / "key.json").read_text())
    assert list(key["labels"]) == sorted(key["labels"]) and len(key["labels"]) == 4


def test_a_packet_is_never_written_over(tmp_path, capsys):
    assert packet.main([str(FIXTURE / "demo"), "--out", str(tmp_path)]) == 2
    assert "name a folder that is not there" in capsys.readouterr().err


def test_a_run_twice_in_a_packet_is_refused(tmp_path, capsys):
    assert packet.main([str(FIXTURE / "demo"), str(FIXTURE / "demo"), "--out", str(tmp_path / "p")]) == 2
    assert "give each run once" in capsys.readouterr().err


def test_a_run_of_another_suite_makes_no_packet(tmp_path):
    with pytest.raises(ReplayError, match="not of reasoning"):
        packet.make([FIXTURE.parent / "tools" / "demo"], tmp_path / "p")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["dimensions"]["form"].update(weight=11), "make 101, not 100"),
        (lambda d: d["dimensions"]["form"]["anchors"].pop(), "4 anchors for 5"),
    ],
)
def test_a_rubric_that_does_not_add_up_is_refused(tmp_path, change, words):
    document = yaml.safe_load(rubric.RUBRIC.read_text())
    change(document)
    path = tmp_path / "rubric.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(Exception, match=words):
        rubric.load(path)
