"""config.json of DeepSeek-V4-Flash's geometry, or of some layers of it: a model folder for ``moet_synthetic``.

    python bench/full_model.py [--layers N] [--drafts N] FOLDER

Everything that decides shapes, memory and speed is the real model's; what only a checkpoint could tell (which hidden
states the draft takes, its Markov rank and noise token) is chosen here and said to be.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import facts
from decode_rate import REAL

LAYERS, DRAFTS = 43, 3
FOLDER = facts.ROOT / "bench" / "models" / "deepseek-v4-flash"
"""Where the full model's file is committed."""
BLOCK = 4
"""Tokens that the draft proposes at once."""
MARKOV_RANK = 256
NOISE_TOKEN = 2


def config(layers: int = LAYERS, drafts: int = DRAFTS, changed: dict[str, Any] = REAL) -> dict[str, Any]:
    """The content of config.json.

    Args:
        layers: target layers.
        drafts: DSpark draft layers, 0 for a model that has none.
        changed: what differs from the demo checkpoint.
    """
    demo = json.loads((facts.ROOT / "demo" / "checkpoint" / "config.json").read_text())
    # Two layers with a sliding window only, then compression by 4 and by 128 in turns; drafts have the window only.
    ratios = [0 if layer < 2 else 128 if layer % 2 else 4 for layer in range(layers)] + [0] * drafts
    made = demo | changed | {"num_hidden_layers": layers, "compress_ratios": ratios}
    if drafts:
        made |= {
            "n_mtp_layers": drafts,
            "num_nextn_predict_layers": drafts,
            # A quarter, a half and three quarters of the way up.
            "dspark_target_layer_ids": sorted({max(0, layers * part // 4 - 1) for part in (1, 2, 3)}),
            "dspark_markov_rank": MARKOV_RANK,
            "dspark_noise_token_id": NOISE_TOKEN,
            "dspark_block_size": BLOCK,
        }
    return made


def write(folder: Path, made: dict[str, Any]) -> Path:
    """Write the folder, which is made if need be, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made, indent=2) + "\n")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="a model folder without weights")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--drafts", type=int, default=DRAFTS)
    args = parser.parse_args()
    print(write(args.folder, config(args.layers, args.drafts)))


if __name__ == "__main__":
    main()
