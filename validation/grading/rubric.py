"""The rubric (cases/reasoning/rubric.yaml): dimensions with weights, fatal faults with caps, and a grader's sheet."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, StrictInt, model_validator

from validation.core import casefile
from validation.core.casefile import Section, Text
from validation.core.errors import CaseError

RUBRIC = casefile.CASES / "reasoning" / "rubric.yaml"


class Dimension(Section):
    """What is graded; ``anchors`` say what each number of points means, from 0."""

    weight: int = Field(gt=0)
    meaning: Text
    anchors: list[Text]


class Fatal(Section):
    """A fault after which an item scores no more than ``cap``, of 100."""

    cap: int = Field(ge=0, lt=100)
    meaning: Text


class Rubric(Section):
    """The whole; weights make 100."""

    points: int = Field(gt=0)
    correction_weight: int = Field(gt=0, lt=100)
    pass_mark: int = Field(gt=0, le=100)
    dimensions: dict[str, Dimension]
    fatals: dict[str, Fatal]

    @model_validator(mode="after")
    def _whole(self) -> Rubric:
        if (total := sum(dimension.weight for dimension in self.dimensions.values())) != 100:
            raise ValueError(f"the weights make {total}, not 100")
        for name, dimension in self.dimensions.items():
            if len(dimension.anchors) != self.points + 1:
                raise ValueError(f"{name} has {len(dimension.anchors)} anchors for {self.points + 1} numbers of points")
        return self


class Item(Section):
    """A grader's word on one item: points by dimension, fatal faults by name."""

    points: dict[str, StrictInt]
    fatals: list[str] = Field(default_factory=list)
    note: str = ""


class Sheet(Section):
    """A grader's file. ``packet_sha256`` says which packet was read."""

    grader: Text
    packet_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    items: dict[str, Item]


def load(path: Path = RUBRIC) -> tuple[Rubric, str]:
    """The rubric and its sha256. Raises CaseError if it is malformed."""
    rubric, digests = casefile.load(Rubric, path, "rubric")
    return rubric, digests[path.name]


def load_sheet(path: Path, rubric: Rubric, labels: set[str]) -> tuple[Sheet, str]:
    """A grader's sheet and its sha256.

    Raises:
        CaseError: it is malformed, grades other items than the packet's, or uses points or faults that are not there.
    """
    sheet, digests = casefile.load(Sheet, path, "sheet")
    for problem in (
        [f"{label} is not graded" for label in sorted(labels - set(sheet.items))],
        [f"{label} is no item of the packet" for label in sorted(set(sheet.items) - labels)],
        [found for label, item in sheet.items.items() for found in _wrong(label, item, rubric)],
    ):
        if problem:
            raise CaseError(f"{path}: {problem[0]}")
    return sheet, digests[path.name]


def _wrong(label: str, item: Item, rubric: Rubric) -> list[str]:
    if set(item.points) != set(rubric.dimensions):
        return [f"{label}: points are wanted for {', '.join(rubric.dimensions)} and nothing else"]
    found = [
        f"{label}: {name} = {points} is not from 0 to {rubric.points}"
        for name, points in item.points.items()
        if not 0 <= points <= rubric.points
    ]
    unknown = [name for name in item.fatals if name not in rubric.fatals]
    return found + [f"{label}: {name} is no fatal fault of the rubric" for name in unknown]
