"""The pack: one file with the FP4 row of every expert, filled while layers are built, read one row at a time.

    <store>/<digest>/pack.w2c        4 KiB head, then row (layer, expert) at head + (layer * experts + expert) * row
                     pack-003.json   vouches for layer 3: CRC-32 of each row's w1, w3 and w2 part; written last

Rows of layers that are never corrected are holes. Two servers that build the same key write the same bytes to the
same places. A row is checked against its CRC each time it is read, so a bad one never reaches a slot.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import torch

from ..cache import layout, publish
from ..cache.key import FORMAT, CacheKey
from ..cache.reads import read_exactly
from ..errors import CacheError
from ..layer import PROJECTIONS
from . import codes

PACK = "pack.w2c"


class Pack:
    """A key's pack, open for reading and writing."""

    def __init__(self, root: Path, key: CacheKey) -> None:
        """Open it, making it where it is not there.

        Raises:
            CacheError: the file is there but not this key's pack.
            OSError: it cannot be opened.
        """
        self.key, self.row_bytes = key, key.geometry.correction_row_bytes
        self.directory = layout.folder(root, key)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._slices = codes.row_slices(key.geometry)
        self._crcs: dict[int, list[dict[str, int]]] = {}
        self._vouched: dict[int, list[dict[str, int]]] = {}
        path = self.directory / PACK
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        head = layout.head(key.digest, key.layers, self.row_bytes)
        found = os.pread(self._file, layout.HEAD, 0)
        if not found:
            os.pwrite(self._file, head, 0)
        elif found != head:
            os.close(self._file)
            raise CacheError(f"{path} is not the pack of this checkpoint; remove it and start again")

    def sealed(self, layer: int) -> bool:
        """Whether every row of a layer is there and vouched for."""
        if layer not in self._vouched:
            crcs = self._read_sidecar(layer)
            if crcs is None:
                return False
            self._vouched[layer] = crcs
        end = self._offset(layer, self.key.geometry.experts)
        return os.fstat(self._file).st_size >= end

    def put(self, layer: int, expert: int, projection: str, weight: torch.Tensor) -> None:
        """Write one projection of one expert.

        Args:
            layer: layer key.
            expert: expert index.
            projection: ``w1``, ``w2`` or ``w3``.
            weight: uint8 ``[N, K / 2]``, this rank's MXFP4 codes as in the checkpoint.
        """
        part = self._slices[projection]
        packed = memoryview(codes.pack(weight).cpu().numpy())
        _write_exactly(self._file, packed, self._offset(layer, expert) + part.start)
        crcs = self._crcs.setdefault(layer, [{} for _ in range(self.key.geometry.experts)])
        crcs[expert][projection] = zlib.crc32(packed)

    def seal(self, layer: int) -> None:
        """Vouch for a layer whose rows were all put, once they are on the disk."""
        crcs = self._crcs.pop(layer)
        os.fsync(self._file)
        document = {"format": FORMAT, "key": self.key.digest, "layer": layer, "crc32": crcs}
        publish.write_atomically(self.directory, _sidecar(layer), json.dumps(document).encode())
        self._vouched[layer] = crcs

    def read(self, layer: int, expert: int, row: torch.Tensor) -> None:
        """Read one row.

        Args:
            layer: a sealed layer.
            expert: expert index.
            row: uint8 ``[row_bytes]`` on the CPU; its content is unspecified where this raises.

        Raises:
            OSError: it cannot be read, ends early, or is not what its CRC vouches for.
        """
        view = memoryview(row.numpy())
        read_exactly(self._file, view, self._offset(layer, expert))
        for projection, part in self._slices.items():
            if zlib.crc32(view[part]) != self._vouched[layer][expert][projection]:
                raise OSError(f"pack row ({layer}, {expert}) {projection} is not what its CRC vouches for")

    def close(self) -> None:
        os.close(self._file)

    def _offset(self, layer: int, expert: int) -> int:
        return layout.HEAD + (layer * self.key.geometry.experts + expert) * self.row_bytes

    def _read_sidecar(self, layer: int) -> list[dict[str, int]] | None:
        try:
            document = json.loads((self.directory / _sidecar(layer)).read_text())
            facts = (document["format"], document["key"], document["layer"], len(document["crc32"]))
            whole = all(set(row) == set(PROJECTIONS) for row in document["crc32"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        wanted = (FORMAT, self.key.digest, layer, self.key.geometry.experts)
        return document["crc32"] if facts == wanted and whole else None


def _sidecar(layer: int) -> str:
    return f"pack-{layer:03d}.json"


def _write_exactly(file: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)
