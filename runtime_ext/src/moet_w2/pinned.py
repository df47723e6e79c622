"""What this distribution was built from: the pins, as the installed package knows them.

``pins.toml`` beside this file is a link to the one table in a source tree and a copy of it in an installed wheel.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import ConfigError

FILE = Path(__file__).with_name("pins.toml")


@dataclass(frozen=True)
class Pinned:
    """The versions that one variant of the distribution is made of.

    Attributes:
        vllm: our build of vLLM, ``<version>+<revision>.<variant>``.
        torch: version, with its local part where the pinned build has one.
        python: minor version of CPython, such as 3.11.
        cuda: (major, minor) of the pinned CUDA compiler.
    """

    vllm: str
    torch: str
    python: str
    cuda: tuple[int, int]


@cache
def load(variant: str, file: Path = FILE) -> Pinned:
    """The pins of a variant, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: the table is missing or not the one of this package.
    """
    try:
        table = tomllib.loads(file.read_text())
        major, minor = table["cuda"]["compiler"].split(".")[:2]
        return Pinned(
            vllm=f"{table['vllm']['version']}+{table['project']['revision']}.{variant}",
            torch=table["torch"][variant]["version"],
            python=table["python"][variant],
            cuda=(int(major), int(minor)),
        )
    except (OSError, tomllib.TOMLDecodeError, KeyError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); install the distribution again") from None
