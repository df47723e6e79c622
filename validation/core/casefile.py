"""A case set: one YAML file, checked by the suite's own model, and the digest of every file that it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moet_w2 import recipe_errors

from . import digest
from .errors import CaseError

CASES = Path(__file__).resolve().parents[1] / "cases"
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A mapping of a case file: nothing that it does not declare may stand in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Section):
    """Sampling of every request of the set; what is left out is the server's own.

    ``thinking`` and ``reasoning_effort`` go into the chat template.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int = Field(gt=0)
    thinking: bool | None = None
    reasoning_effort: str | None = None

    def body(self) -> dict[str, Any]:
        """The fields of a chat request."""
        found: dict[str, Any] = {"max_tokens": self.max_tokens}
        found |= {name: getattr(self, name) for name in ("temperature", "top_p") if getattr(self, name) is not None}
        words = {name: getattr(self, name) for name in ("thinking", "reasoning_effort")}
        words = {name: value for name, value in words.items() if value is not None}
        return found | ({"chat_template_kwargs": words} if words else {})


class CaseSet(Section):
    """What every case set says. A suite adds its own cases.

    Attributes:
        about: what the set is for, in a sentence or two.
        settings: sampling.
        allowed_faults: by gate, how many faults it bears; none where it is not named.
    """

    about: Text
    settings: Settings
    allowed_faults: dict[str, int] = Field(default_factory=dict)


def locate(suite: str, name: str) -> Path:
    """The file of a case set: a name such as ``full``, or a path that ends in .yaml."""
    return Path(name) if name.endswith(".yaml") else CASES / suite / f"{name}.yaml"


def load(model: type[Section], path: Path, what: str = "case set") -> tuple[Any, dict[str, str]]:
    """Read and check a case set, or another file that is checked in the same way.

    Args:
        model: the suite's model; its ``files`` (a list of names beside the set), where it has one, are digested too.
        what: the file, for an error.

    Returns:
        the set and, by file name, sha256.

    Raises:
        CaseError: the file cannot be read, is not YAML, or holds what the suite does not know.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=recipe_errors.UniqueKeyLoader)
        found = model.model_validate(data)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; name a {what} that is there") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CaseError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise CaseError(f"{path}: {first_problem(error)}") from None
    return found, {path.name: digest.of_file(path)}


def first_problem(error: ValidationError) -> str:
    """What a model does not take, and where, in one line; further ones are counted."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "the file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{place}: {problem['msg']}{more}"
