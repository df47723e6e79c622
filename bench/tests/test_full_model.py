"""The model folder without weights: committed as it is made, and as the planner and the recipes read it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import full_model

from moet_w2 import checkpoint
from moet_w2.geometry import LayerGeometry


def test_the_committed_file_is_what_is_made() -> None:
    assert json.loads((full_model.FOLDER / "config.json").read_text()) == full_model.config()


def test_every_layer_has_its_ratio_and_the_draft_what_vllm_asks_for() -> None:
    made = full_model.config()
    assert len(made["compress_ratios"]) == made["num_hidden_layers"] + made["n_mtp_layers"] == 46
    assert made["compress_ratios"][-3:] == [0, 0, 0] and set(made["compress_ratios"][2:43]) == {4, 128}
    assert all(0 <= layer < 43 for layer in made["dspark_target_layer_ids"])
    assert {"dspark_markov_rank", "dspark_noise_token_id", "dspark_block_size"} < set(made)
    assert checkpoint.describe(full_model.FOLDER).geometry == LayerGeometry(256, 4096, 2048)


def test_a_model_without_a_draft_says_nothing_of_one(tmp_path: Path) -> None:
    made = full_model.config(8, drafts=0)
    assert len(made["compress_ratios"]) == 8 and not [name for name in made if name.startswith("dspark")]
    assert json.loads((full_model.write(tmp_path / "a" / "b", made) / "config.json").read_text()) == made
