"""The ``moet`` load format: what a full hit reads of the checkpoint, and how a part of one is built."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from generators import TINY
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from moet_w2 import plugin, runtime
from moet_w2.cache import layout
from moet_w2.errors import ConfigError
from moet_w2.layer import Shard


@pytest.fixture(scope="module")
def loader_module():
    plugin.register()
    from moet_w2 import loader

    return loader


@pytest.fixture
def cached(fresh_runtime, loader_module, monkeypatch, tmp_path: Path):
    """A runtime with a cache, over a checkpoint that also holds dense tensors."""
    folder = tmp_path / "model"
    shard = folder / "model-00001-of-00002.safetensors"
    save_file(
        load_file(str(shard)) | {"embed.weight": torch.ones(8, 4), "layers.0.ffn.gate.weight": torch.ones(4)}, shard
    )
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] |= dict.fromkeys(("embed.weight", "layers.0.ffn.gate.weight"), shard.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setenv("VLLM_MOE_W2_PLANES_CACHE", str(tmp_path / "cache"))

    def start() -> runtime.W2Runtime:
        runtime.get.cache_clear()
        made = fresh_runtime(load_format="moet")
        for layer in (0, 1):
            made.create_layer(layer, TINY, Shard())
        return made

    return start


def names_read(loader_module, folder: Path) -> dict[str, int]:
    """Tensors that the loader hands to the model, with their bytes."""
    return {name: tensor.nbytes for name, tensor in tensors(loader_module, folder)}


def tensors(loader_module, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """What the loader hands to the model; the loader itself is ``MoetLoader.last``."""
    loader = loader_module.MoetLoader.last = loader_module.MoetLoader.__new__(loader_module.MoetLoader)
    files = sorted(map(str, folder.glob("*.safetensors")))
    loader._prepare_weights = lambda *args: (str(folder), files, True, None)
    source = SimpleNamespace(
        model_or_path=str(folder),
        subfolder=None,
        revision=None,
        fall_back_to_pt=False,
        allow_patterns_overrides=None,
        prefix="",
    )
    return loader._get_weights_iterator(source)


def construct(made: runtime.W2Runtime, folder: Path, keys=(0, 1)) -> None:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as shard:
            for name in shard.keys():
                parts = name.split(".")
                if len(parts) == 7 and int(parts[1]) in keys:
                    made.layers[int(parts[1])].put(int(parts[4]), parts[5], parts[6], shard.get_tensor(name))
    for key in keys:
        made.loaded(made.layers[key], 0)
    made.cache.wait()
    made.cache.close()


def test_a_full_hit_reads_the_dense_tensors_and_nothing_else(cached, loader_module, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    first = cached()
    first.fill_from_cache()
    everything = names_read(loader_module, folder)
    assert len(everything) == 2 * TINY.experts * 6 + 2
    construct(first, folder)
    second = cached()
    second.fill_from_cache()
    assert all(layer.complete and layer.origin == "cache" for layer in second.layers.values())
    for key in (0, 1):
        assert torch.equal(second.layers[key].storage, first.layers[key].storage)
    read = names_read(loader_module, folder)
    assert read == {"embed.weight": 8 * 4 * 4, "layers.0.ffn.gate.weight": 4 * 4}
    second.cache.close()


def test_only_the_layers_that_miss_are_read_from_the_checkpoint(cached, loader_module, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    folder = tmp_path / "model"
    first = cached()
    first.fill_from_cache()
    construct(first, folder)
    next((tmp_path / "cache").glob("*/layer-001.w2")).unlink()
    second = cached()
    second.fill_from_cache()
    read = names_read(loader_module, folder)
    experts = {name for name in read if ".experts." in name}
    assert "checkpoint: 0.00 of 0.00 GiB (1 layers), " in caplog.text  # progress of what is built
    assert len(experts) == TINY.experts * 6 and all(name.startswith("layers.1.") for name in experts)
    construct(second, folder, keys=(1,))
    assert next((tmp_path / "cache").glob("*/layer-001.w2")).is_file()


def header_bytes(folder: Path) -> dict[str, int]:
    """Bytes of every tensor of a checkpoint, by the shards' own headers."""
    sizes = {}
    for file in folder.glob("*.safetensors"):
        content = file.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        sizes |= {
            name: one["data_offsets"][1] - one["data_offsets"][0] for name, one in header.items() if name[0] != "_"
        }
    return sizes


def test_bytes_read_on_a_full_hit_are_the_bytes_that_are_not_experts(
    cached, loader_module, monkeypatch, tmp_path: Path
) -> None:
    """Counted where the loader takes tensors out of the file; the mapping below reads no page that nobody asks for."""
    folder = tmp_path / "model"
    first = cached()
    first.fill_from_cache()
    construct(first, folder)
    sizes, asked = header_bytes(folder), []
    real = loader_module.safe_open

    class Counting:
        def __init__(self, *args, **kwargs):
            self._file = real(*args, **kwargs)

        def __enter__(self):
            self._shard = self._file.__enter__()
            return self

        def __exit__(self, *exception):
            return self._file.__exit__(*exception)

        def keys(self):
            return self._shard.keys()

        def get_tensor(self, name):
            asked.append(name)
            return self._shard.get_tensor(name)

    monkeypatch.setattr(loader_module, "safe_open", Counting)
    for misses, wanted in (
        ((), {name for name in sizes if ".experts." not in name}),
        ((1,), {name for name in sizes if ".experts." not in name or name.startswith("layers.1.")}),
    ):
        here = cached()
        for key in misses:
            layout.payload_path(layout.folder(here.cache.root, here.cache.key), key).unlink()
        here.fill_from_cache()
        asked.clear()
        read = names_read(loader_module, folder)
        assert sorted(asked) == sorted(wanted)
        assert loader_module.MoetLoader.last.nbytes_read == sum(sizes[name] for name in wanted) == sum(read.values())
        here.cache.close()


def test_a_start_that_is_killed_continues_where_it_stopped(cached, loader_module, tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def first_start() -> None:
        here = cached()
        here.fill_from_cache()
        for name, tensor in tensors(loader_module, folder):
            _, key, _, _, expert, projection, kind = name.split(".") if ".experts." in name else [None] * 7
            if key == "1" and here.layers[0].complete:
                here.cache.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            if key is not None:
                here.layers[int(key)].put(int(expert), projection, kind, tensor)

    pid = os.fork()
    if pid == 0:
        first_start()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    second = cached()
    second.fill_from_cache()
    assert [layer.complete for layer in second.layers.values()] == [True, False]
    assert second.cache.misses == {1: "no-payload"}
    read = names_read(loader_module, folder)
    assert {name.split(".")[1] for name in read if ".experts." in name} == {"1"}
    second.cache.close()


def test_draft_tensors_are_judged_by_their_own_key(loader_module, monkeypatch) -> None:
    layers = {
        0: SimpleNamespace(complete=True),
        43: SimpleNamespace(complete=True),
        44: SimpleNamespace(complete=False),
    }
    here = SimpleNamespace(plan=SimpleNamespace(target_layers=43), layers=layers)
    monkeypatch.setattr(runtime, "get", lambda: here)
    wanted = loader_module.is_wanted
    assert not wanted("layers.0.ffn.experts.1.w1.weight") and not wanted("mtp.0.ffn.experts.1.w1.scale", True)
    assert wanted("mtp.1.ffn.experts.1.w1.weight", True)
    assert not wanted("mtp.2.ffn.experts.1.w1.weight", True)  # a draft layer that is not served
    assert wanted("layers.0.ffn.gate.weight") and wanted("layers.0.ffn.shared_experts.w1.weight")
    # Neither pass reads what the other one takes.
    assert not wanted("mtp.1.ffn.experts.1.w1.weight") and not wanted("mtp.0.main_norm.weight")
    assert not wanted("layers.0.ffn.gate.weight", True) and wanted("mtp.0.main_norm.weight", True)
    layers.clear()  # vLLM's own experts
    assert wanted("layers.0.ffn.experts.1.w1.weight") and wanted("mtp.0.ffn.experts.1.w1.weight", True)


def test_a_cache_without_its_load_format_is_refused(fresh_runtime, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_MOE_W2_PLANES_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="needs --load-format moet, not auto"):
        fresh_runtime()


def test_vllm_knows_the_load_format(loader_module) -> None:
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    loader = get_model_loader(LoadConfig(load_format="moet"))
    assert isinstance(loader, loader_module.MoetLoader)
    assert loader.load_config.load_format == "auto"
