"""A recorded routing trace: what was routed where in every window, and what the manager made of it.

    first line      JSON: format, geometry of the counts, policy and settings that served, totals, whether it is whole
    the rest        zlib stream of windows, each
                      float64 seconds since the first one; uint32 n, p, e
                      n uint32 experts, n uint32 routings, p uint32 promoted, e uint32 evicted experts
                    an expert is layer * experts + expert; little-endian throughout

A recorder keeps the compressed windows in memory, no more than a bound, and replaces the file as a whole.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy

from ..cache import publish
from ..errors import MoetError
from .metrics import Totals

logger = logging.getLogger("vllm.moet_w2.correction")

FORMAT = "moet.routing-trace/1"
MOST_BYTES = 64 << 20
"""Compressed bytes that a recorder keeps; about an hour of decoding at the real geometry."""
_WINDOW = struct.Struct("<dIII")


class TraceError(MoetError):
    """A trace file is missing, not a trace, or damaged."""


@dataclass(frozen=True)
class Header:
    """What a trace was recorded with.

    Attributes:
        layers, experts: shape of the counts.
        eligible: layers that may be corrected.
        slots: slots of the pool that served.
        row_bytes: bytes of a slot.
        policy, half_life, most_moves: how the manager decided.
    """

    layers: int
    experts: int
    eligible: tuple[int, ...]
    slots: int
    row_bytes: int
    policy: str
    half_life: float
    most_moves: int


@dataclass(frozen=True)
class Window:
    """Routings between two passes of the manager.

    Attributes:
        seconds: time of the pass that worked on it, since the first pass.
        experts, routings: uint32 ``[n]``: flat expert indices, and how many routings each had.
        promoted, evicted: uint32, flat indices, what the pass did.
    """

    seconds: float
    experts: numpy.ndarray
    routings: numpy.ndarray
    promoted: numpy.ndarray
    evicted: numpy.ndarray


@dataclass(frozen=True)
class Trace:
    """A trace as it was read. ``whole`` is False where the recorder's bound cut its end off."""

    header: Header
    windows: list[Window]
    totals: dict[str, int]
    whole: bool


@dataclass
class Recorder:
    """Collects windows in the manager's thread.

    Attributes:
        path: file that is written, replaced atomically.
        header: what to say of the run.
        most_bytes: compressed bytes to keep; windows beyond are left out, and the file says so.
    """

    path: Path
    header: Header
    most_bytes: int = MOST_BYTES
    _parts: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _start: float | None = None
    _whole: bool = True

    def __post_init__(self) -> None:
        self._compressor = zlib.compressobj(1)

    def add(
        self,
        now: float,
        window: numpy.ndarray,
        promoted: Iterable[tuple[int, int]],
        evicted: Iterable[tuple[int, int]],
    ) -> None:
        """Take a window.

        Args:
            now: the manager's clock, seconds.
            window: int64 ``[layers, experts]``.
            promoted, evicted: (layer, expert) that the pass moved.
        """
        if self._start is None:
            self._start = now
        if self._bytes >= self.most_bytes:
            if self._whole:
                logger.warning("routing trace: %d bytes reached; later windows are left out", self.most_bytes)
            self._whole = False
            return
        flat = window.ravel()
        experts = numpy.flatnonzero(flat)
        moves = [[layer * window.shape[1] + expert for layer, expert in group] for group in (promoted, evicted)]
        head = _WINDOW.pack(now - self._start, len(experts), len(moves[0]), len(moves[1]))
        arrays = [numpy.asarray(part).astype("<u4").tobytes() for part in (experts, flat[experts], *moves)]
        self._keep(self._compressor.compress(b"".join([head, *arrays])))

    def write(self, totals: Totals) -> None:
        """Write what there is so far, in place of what was written before. A failure is logged, never fatal."""
        end = self._compressor.copy().flush()
        document = {"format": FORMAT, **asdict(self.header), "totals": asdict(totals), "whole": self._whole}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps(document).encode() + b"\n" + b"".join([*self._parts, end])
            publish.write_atomically(self.path.parent, self.path.name, content)
        except OSError as error:
            logger.warning("the routing trace %s was not written: %s", self.path, error)

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._bytes += len(part)


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        TraceError: it is missing, not a trace of this format, or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"trace {path} cannot be read: {error.strerror}; is VLLM_MOE_W2_TRACE set?") from None
    line, _, body = content.partition(b"\n")
    try:
        document = json.loads(line)
        if document["format"] != FORMAT:
            raise ValueError(document["format"])
        names = Header.__dataclass_fields__
        header = Header(**{name: document[name] for name in names} | {"eligible": tuple(document["eligible"])})
        totals, whole = document["totals"], bool(document["whole"])
    except (ValueError, TypeError, LookupError):
        raise TraceError(f"trace {path} is not a routing trace of format {FORMAT}; record it again") from None
    try:
        windows = list(_windows(zlib.decompress(body)))
    except (zlib.error, struct.error, ValueError) as error:
        raise TraceError(f"trace {path} is damaged: {error}; record it again") from None
    most = header.layers * header.experts
    if any(part.max(initial=0) >= most for window in windows for part in (window.experts, window.promoted)):
        raise TraceError(f"trace {path} names an expert beyond its {most}; record it again")
    return Trace(header, windows, totals, whole)


def _windows(body: bytes) -> Iterable[Window]:
    offset = 0
    while offset < len(body):
        seconds, experts, promoted, evicted = _WINDOW.unpack_from(body, offset)
        offset += _WINDOW.size
        parts: list[Any] = []
        for number in (experts, experts, promoted, evicted):
            parts.append(numpy.frombuffer(body, "<u4", number, offset))
            offset += 4 * number
        yield Window(seconds, *parts)


def dense(window: Window, shape: Sequence[int]) -> numpy.ndarray:
    """int64 ``[layers, experts]``: a window's counts as the recorder was given them."""
    counts = numpy.zeros(int(numpy.prod(shape)), dtype=numpy.int64)
    counts[window.experts] = window.routings
    return counts.reshape(tuple(shape))
