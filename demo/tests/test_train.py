"""The maker at toy scale: it gives the committed geometry, the same bytes twice, and goes on from a saved state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from demo.make import checkpoint, export
from demo.make.train import main, rate_at

SMALLEST = "--device cpu --scale 0.001 --short --corpus 300 --evaluate-count 0".split()


def train(out: Path, steps: int, *more: str) -> Path:
    """Run the trainer on one thread with the smallest batches; returns the checkpoint's folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        main(["--out", str(out), "--steps", str(steps), *SMALLEST, *more])
    finally:
        torch.set_num_threads(threads)
    return out / "checkpoint"


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after two steps, one with either reading of the experts."""
    return train(tmp_path_factory.mktemp("toy"), 2)


def test_geometry_is_the_committed_ones(two_steps: Path, checkpoint_dir: Path) -> None:
    ours, committed = checkpoint.read(two_steps), checkpoint.read(checkpoint_dir)
    assert {n: (t.dtype, t.shape) for n, t in ours.items()} == {n: (t.dtype, t.shape) for n, t in committed.items()}
    assert (two_steps / "config.json").read_bytes() == (checkpoint_dir / "config.json").read_bytes()
    assert json.loads((two_steps.parent / "metrics.json").read_text())["steps"] == 2


def test_the_same_seed_gives_the_same_bytes(two_steps: Path, tmp_path: Path) -> None:
    # Also through an interruption: the second run stops after one step and goes on from its state.
    state = tmp_path / "state"
    train(tmp_path / "first", 2, "--resume", str(state), "--pause-at", "1")
    again = train(tmp_path / "second", 2, "--resume", str(state))
    files = sorted(p.name for p in two_steps.iterdir())
    assert len(files) == 8
    for name in files:
        assert (again / name).read_bytes() == (two_steps / name).read_bytes(), name


def test_training_changes_the_experts(two_steps: Path, tmp_path: Path) -> None:
    export.main(["--out", str(tmp_path), "--corpus", "300"])
    before, after = checkpoint.read(tmp_path), checkpoint.read(two_steps)
    name = "layers.1.attn.wkv.weight"
    assert before[name].float().ne(after[name].float()).any()


def test_a_committed_checkpoint_can_be_trained_further(checkpoint_dir: Path, tmp_path: Path) -> None:
    further = train(tmp_path, 1, "--start-from", str(checkpoint_dir))
    before, after = checkpoint.read(checkpoint_dir), checkpoint.read(further)
    name = "layers.2.attn.wkv.weight"
    assert before[name].float().sub(after[name].float()).abs().mean() < 0.05 * before[name].float().abs().mean()


def test_learning_rate_warms_up_and_ends_at_zero() -> None:
    assert rate_at(0, 0.0, 1.0) == pytest.approx(0.005)
    assert rate_at(500, 0.3, 1.0) == 1.0
    assert rate_at(5000, 1.0, 1.0) == 0.0
