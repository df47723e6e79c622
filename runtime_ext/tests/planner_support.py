"""What the planner's tests share."""

import json
from pathlib import Path

from hypothesis import strategies as st

from moet_w2.planner.model import FLASH, from_config
from moet_w2.planner.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "bench" / "recipes"
MODEL = from_config(FLASH)
WISHES = st.builds(
    Settings,
    context=st.integers(1024, 1 << 20),
    utilization=st.floats(0.5, 1.0),
    seqs=st.integers(1, 16),
    batched=st.sampled_from([512, 2048, 8192]),
    speculative=st.integers(0, 7),
    correction_bytes=st.sampled_from([0, 1 << 30, 6 << 30]),
)


def result(name):
    """A committed result file."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
