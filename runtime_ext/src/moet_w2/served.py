"""A note of what a checkout served last, so that a validation finds its server without being told."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .command import Command
from .errors import ConfigError
from .recipe import Recipe


@dataclass(frozen=True)
class Served:
    """One start of a server.

    Attributes:
        recipe: the recipe's file; recipe_sha256: digest of its bytes at that moment.
        root: the folder that the recipe's relative paths start at.
        base_url: URL of the API.
        model: served name.
        model_path: folder of the checkpoint.
        audit_path: file that receives the audit, or None when W2 is off.
        pid: process that became the server.
    """

    recipe: str
    recipe_sha256: str
    root: str
    base_url: str
    model: str
    model_path: str
    audit_path: str | None
    pid: int


def note(root: Path) -> Path:
    """Where the note of a checkout lies."""
    return root / ".native" / "run" / "served.json"


def write(recipe: Recipe, command: Command) -> None:
    """Leave the note for the server that this process is about to become.

    Raises:
        ConfigError: the note cannot be written.
    """
    entry = Served(
        recipe=str(recipe.file),
        recipe_sha256=recipe.digest,
        root=str(recipe.root),
        base_url=command.base_url,
        model=command.model,
        model_path=str(command.model_path),
        audit_path=None if command.audit_path is None else str(command.audit_path),
        pid=os.getpid(),
    )
    path = note(recipe.root)
    temporary = path.with_name(f".{path.name}.{entry.pid}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(entry), indent=2) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); make its folder writable") from None


def read(root: Path) -> Served | None:
    """The note of a checkout, or None when nothing was served from it.

    Raises:
        ConfigError: the note is not one of this version.
    """
    path = note(root)
    try:
        return Served(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it and start the server again") from None
