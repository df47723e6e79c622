"""Bytes of the planner: against the demo checkpoint, vLLM's modules, and what must hold for any wish."""

import json
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_support import MODEL, ROOT, WISHES

from moet_w2.errors import CheckpointError, ConfigError
from moet_w2.planner import memory, weights
from moet_w2.planner.machine import GIB, Machine, card
from moet_w2.planner.model import FLASH, from_config
from moet_w2.planner.placements import last
from moet_w2.planner.settings import Settings

COUNTS = st.integers(0, MODEL.layers)


def test_dense_bytes_are_those_of_the_demo_checkpoint():
    folder = ROOT / "demo" / "checkpoint"
    model = from_config(json.loads((folder / "config.json").read_text()))
    found: Counter[str] = Counter()
    for shard in folder.glob("*.safetensors"):
        with shard.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        for name, entry in header.items():
            if name != "__metadata__" and ".experts." not in name:
                first, last = entry["data_offsets"]
                found[purpose(name)] += last - first
    assert found == {name: nbytes for name, nbytes in weights.dense(model).items() if nbytes}


def purpose(name):
    if ".shared_experts." in name:
        return weights.SHARED
    if ".gate." in name:
        return weights.GATES
    if ".compressor." in name or ".indexer." in name:
        return weights.INDEXER
    if ".attn." in name:
        return weights.ATTENTION
    return {"embed.weight": weights.EMBEDDING, "head.weight": weights.HEAD}.get(name, weights.STREAMS)


def test_dense_bytes_of_flash_are_those_of_vllms_modules():
    # Sums over named_parameters() of DeepseekV4Model and DSparkDeepseekV4Model of vLLM's nvidia package, built on the
    # meta device from this geometry; embedding and head of the draft are the target's, routed experts not counted.
    dense = weights.dense(MODEL)
    assert sum(dense.values()) - dense[weights.DRAFT] - dense[weights.HEAD] == 7_777_589_468
    assert dense[weights.DRAFT] == 601_482_652


def test_flash_is_what_the_benchmarks_serve():
    config = json.loads((ROOT / "bench" / "models" / "deepseek-v4-flash" / "config.json").read_text())
    assert from_config(config) == MODEL


@given(settings=WISHES, count=st.integers(0, MODEL.layers - 1))
def test_one_more_mapped_layer_frees_exactly_its_bytes(settings, count):
    before, after = (memory.account(MODEL, card(), settings, last(MODEL, n)) for n in (count, count + 1))
    assert after.kv_bytes - before.kv_bytes == MODEL.geometry.nbytes == 1_811_939_328
    assert after.mapped_bytes - before.mapped_bytes == MODEL.geometry.nbytes


@given(settings=WISHES, count=COUNTS)
def test_every_byte_of_the_share_has_a_purpose(settings, count):
    found = memory.account(MODEL, card(), settings, last(MODEL, count))
    assert sum(found.device.values()) + found.kv_bytes == found.share
    assert all(nbytes >= 0 for nbytes in found.device.values())


@given(settings=WISHES, count=COUNTS, vram=st.floats(8, 192), more=st.floats(0, 96))
def test_more_memory_never_gives_fewer_tokens(settings, count, vram, more):
    mapped = last(MODEL, count)
    less, much = (memory.account(MODEL, card(gib), settings, mapped).kv_tokens for gib in (vram, vram + more))
    assert less <= much


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"utilization": 0}, "utilization"),
        ({"utilization": 1.1}, "utilization"),
        ({"context": 0}, "context"),
        ({"seqs": 0}, "seqs"),
        ({"batched": 0}, "batched"),
        ({"speculative": -1}, "speculative"),
        ({"correction_bytes": -1}, "correction_bytes"),
        ({"block": 100}, "block"),
    ],
)
def test_settings_that_no_server_takes(change, named):
    with pytest.raises(ConfigError, match=named):
        Settings(**change)


@pytest.mark.parametrize("change", [{"cuda_bytes": 0}, {"host_bytes": -1}, {"hbm_gbs": 0}, {"link_gbs": -5}])
def test_machines_that_are_none(change):
    with pytest.raises(ConfigError, match="must be greater than 0"):
        Machine(**({"cuda_bytes": GIB, "host_bytes": GIB, "hbm_gbs": 1, "link_gbs": 1} | change))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"hidden_size": None}, "hidden_size"), ({"vocab_size": True}, "vocab"), ({"compress_ratios": [4]}, "ratios")],
)
def test_configurations_that_are_no_model(change, named):
    with pytest.raises(CheckpointError, match=named):
        from_config(FLASH | change)
