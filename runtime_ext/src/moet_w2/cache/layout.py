"""Files of a cache folder. A payload file is one head block, then the layer exactly as it lies in memory."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from .key import FORMAT, CacheKey

HEAD = 4096
"""Bytes of the head block: a whole page, so that the payload stays aligned for direct reads."""
KEY_FILE = "key.json"
IN_USE = ".in-use"
TEMPORARY = ".tmp-"
_MAGIC = b"MOETW2PL"
_PAYLOAD = re.compile(r"^layer-(\d{3,})\.w2$")
_SIDECAR = re.compile(r"^layer-\d{3,}\.json$")
_DIGITS = 24
"""Of a key's digest, which stand in the name of its folder."""


@dataclass(frozen=True)
class Sidecar:
    """What vouches for a payload: written after it, removed before it is replaced."""

    key: str
    layer: int
    nbytes: int
    sha256: str

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **self.__dict__}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Sidecar:
        """Raises ValueError where the text is not a sidecar of this format."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            raise ValueError("not a sidecar of this format")
        try:
            return cls(**document)
        except TypeError as error:
            raise ValueError(str(error)) from None


def folder(root: Path, key: CacheKey) -> Path:
    """The folder of a key. Its name is the start of the digest; the whole digest stands inside."""
    return root / key.digest[:_DIGITS]


def is_folder_name(name: str) -> bool:
    """Whether :func:`folder` could have given this name."""
    return len(name) == _DIGITS and set(name) <= set("0123456789abcdef")


def is_file_name(name: str) -> bool:
    """Whether a file of a cache folder may have this name."""
    return (
        name in (KEY_FILE, IN_USE)
        or name.startswith(TEMPORARY)
        or any(pattern.match(name) for pattern in (_PAYLOAD, _SIDECAR))
    )


def make_folder(root: Path, key: CacheKey) -> Path:
    """The folder of a key, made where it is not there.

    Raises:
        OSError: it cannot be made, or is a link: that could lead out of the cache root, to files that are not ours.
    """
    directory = folder(root, key)
    directory.mkdir(parents=True, exist_ok=True)
    if directory.is_symlink():
        raise OSError(errno.ELOOP, "a cache folder must not be a symbolic link", str(directory))
    return directory


def payload_path(directory: Path, layer: int) -> Path:
    return directory / f"layer-{layer:03d}.w2"


def sidecar_path(directory: Path, layer: int) -> Path:
    return directory / f"layer-{layer:03d}.json"


def layers_in(directory: Path) -> list[int]:
    """Keys of the layers that have a payload file, whatever it is worth."""
    return sorted(int(m.group(1)) for m in map(_PAYLOAD.match, os.listdir(directory)) if m)


def head(key: str, layer: int, nbytes: int) -> bytes:
    """The head block: magic, CRC-32 of the text, length of the text, the text, zeros."""
    text = json.dumps({"format": FORMAT, "key": key, "layer": layer, "nbytes": nbytes}).encode()
    block = _MAGIC + zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
    return block.ljust(HEAD, b"\0")


def head_is(block: bytes, key: str, layer: int, nbytes: int) -> bool:
    """Whether a head block is, bit for bit, the one that this layer must have."""
    return block == head(key, layer, nbytes)
