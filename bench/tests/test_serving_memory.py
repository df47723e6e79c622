"""What is said of the card's memory while a server runs, and the process that holds a card to a size."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from moet_w2.doctor.nvml import Absent, Driver, Gpu, Process

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import hold_memory
import serving_memory

MIB = hold_memory.MIB
HOLDER = (
    "import json, sys, pathlib; print(json.dumps({'held_mib': 7, 'free_mib': 97280}), flush=True);"
    "sys.stdin.read(); pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
)


class Card:
    """A card of so many MiB free that gives memory out 2 MiB at a time, no more than ``piece`` at once, and takes
    ``tables`` itself to map a piece of a GiB or more."""

    def __init__(self, free: int, piece: int = 1 << 20, tables: int = 0) -> None:
        self.bytes, self.piece, self.tables = free * MIB, piece * MIB, tables * MIB

    def free(self) -> int:
        return self.bytes

    def allocate(self, nbytes: int) -> bytes:
        self.bytes -= min(nbytes, self.piece) + (self.tables if nbytes >= 1 << 30 else 0)
        return b""


@pytest.mark.parametrize("free", [97280, 97281, 140000, 140003])
@pytest.mark.parametrize("piece", [1 << 20, 30000])
@pytest.mark.parametrize("tables", [0, 2, 30])
def test_what_is_left_is_what_was_asked_for(free, piece, tables) -> None:
    card = Card(free, piece, tables)
    hold_memory.take(97280 * MIB, card.free, card.allocate)
    assert 97280 * MIB <= card.bytes < 97282 * MIB


def test_a_card_with_less_is_refused() -> None:
    card = Card(97279)
    with pytest.raises(MemoryError, match="97279 MiB are free, less than the 97280"):
        hold_memory.take(97280 * MIB, card.free, card.allocate)


def test_an_allocation_that_takes_nothing_does_not_go_on_for_ever() -> None:
    with pytest.raises(MemoryError, match="as much is free as before"):
        hold_memory.take(0, Card(10).free, lambda nbytes: None)


def test_the_process_holds_until_it_is_closed(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    held = serving_memory.Held(95.0, "0", (sys.executable, "-c", HOLDER, str(ended)))
    assert held.told == {"to_gib": 95.0, "held_mib": 7, "free_mib": 97280} and not ended.exists()
    held.close()
    assert ended.read_text() == "--leave-gib 95.0"


def test_a_process_that_cannot_hold_is_an_error_with_its_words() -> None:
    with pytest.raises(RuntimeError, match="held to 95.0 GiB: hold_memory: 3 MiB are free"):
        serving_memory.Held(95.0, "0", (sys.executable, "-c", "raise SystemExit('hold_memory: 3 MiB are free')"))


def test_the_servers_part_is_what_is_beyond_what_was_before(monkeypatch) -> None:
    used, asked = [46000, 46500, 46100, 143000, 142000], threading.Event()

    def ask(index: str) -> tuple[int, int]:
        if len(used) == 1:
            asked.set()
        return (used.pop(0) if len(used) > 1 else used[0]), 143771

    monkeypatch.setattr(serving_memory, "gpu_memory", ask)
    memory = serving_memory.Memory("0", every=1e6)
    assert memory.mark() == {"now": 500, "most": 500} and memory.mark() == {"now": 100, "most": 500}
    memory._see(ask("0")[0])
    assert memory.mark() == {"now": 96000, "most": 97000}
    memory.close()
    assert memory.summary() == {"before": 46000, "peak": 143000, "total": 143771, "own_peak": 97000}


@pytest.fixture
def card(monkeypatch):
    """A function that sets what nvidia-smi says to be in use, in MiB, and who NVML says holds it."""

    def set_to(used: int, *processes: Process) -> None:
        gpus = tuple(
            Gpu(index, "NVIDIA H200", f"GPU-{index}f", "", (9, 0), 0, 0, held)
            for index, held in enumerate([(Process(1, 1),), processes])
        )
        monkeypatch.setattr(serving_memory, "gpu_memory", lambda index: (used, 143771))
        monkeypatch.setattr(serving_memory.nvml, "read", lambda: Driver("580", (13, 0), gpus))

    return set_to


@pytest.mark.parametrize("index", ["1", "GPU-1f"])
def test_a_card_that_others_hold_is_named_with_them(card, index) -> None:
    card(46500, Process(4711, 45000 * MIB), Process(os.getpid(), 500 * MIB), Process(4712, None))
    assert serving_memory.occupied(index) == (
        f"GPU {index}: 46,500 MiB are held by process 4711 (45,000 MiB), process 4712, and 1,024 at most may be before "
        "a run; end them, or choose another card by CUDA_VISIBLE_DEVICES"
    )


def test_a_card_whose_holders_are_not_told_is_refused_all_the_same(card, monkeypatch) -> None:
    card(serving_memory.OTHERS_MIB + 1)
    assert "1,025 MiB are held by processes that NVML does not name here" in serving_memory.occupied("1")
    monkeypatch.setattr(serving_memory.nvml, "read", lambda: Absent("nvidia-ml-py is not installed"))
    assert "1,025 MiB are held by processes that NVML does not name here" in serving_memory.occupied("1")


def test_a_context_of_this_process_leaves_a_card_free(card) -> None:
    card(serving_memory.OTHERS_MIB, Process(os.getpid(), 500 * MIB))
    assert serving_memory.occupied("1") is None


def test_without_a_gpu_nothing_is_said(monkeypatch) -> None:
    monkeypatch.setattr(serving_memory, "gpu_memory", lambda index: None)
    memory = serving_memory.Memory("0")
    memory.close()
    assert serving_memory.occupied("0") is None
    assert memory.mark() is None and json.dumps(memory.summary()) == '{"before": null, "peak": 0, "total": null}'
