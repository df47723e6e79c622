"""The doctor as a whole: versions, compilers, memory, folders, the recipe's own parts, the command."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_nvml import GIB, Card, Nvml, machine
from generators import TINY, write_checkpoint
from recipe_text import VALID, write

from moet_w2 import cli, command, overrides, pinned, recipe
from moet_w2.cache import key, layout
from moet_w2.config import W2Config
from moet_w2.doctor import Report, Status, examine, launch, report, software, storage
from moet_w2.doctor.nvml import Absent, read
from moet_w2.doctor.subject import Subject
from moet_w2.errors import ConfigError
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard

RECIPE = VALID | {
    "device": {"kind": "cpu"},
    "model": {"path": "model", "served_name": "tiny", "geometry": {"experts": 4, "hidden": 256, "width": 128}},
    "w2": {"mapped_layers": [1]},
    "engine": {"max-model-len": 512, "block-size": 256, "enforce-eager": True},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": 1},
    "expect": {"max_model_len": 512, "w2_layers": 2, "mapped_layers": [1], "mapped_bytes": TINY.nbytes},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a whole small checkpoint, a made-up machine below ``machine`` and a ``vllm`` to start."""
    write_checkpoint(tmp_path / "model")
    machine(tmp_path / "machine")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    return tmp_path


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def look(place: Path, environ: dict[str, str] | None = None, data: dict = RECIPE, **words) -> Report:
    """Examine a recipe on the made-up machine."""
    environ = {"PORT": free_port(), "PATH": "/usr/bin:/bin"} | (environ or {})
    loaded = recipe.load(write(place, data))
    rendered = command.render(loaded, overrides.read(environ), program=str(launch.program()))
    return examine(loaded, rendered, environ, place / "machine", Nvml(broken="no driver"), **words)


def one(found: Report, thing: str) -> report.Check:
    (check,) = [check for check in found.checks if check.thing == thing]
    return check


def test_a_good_machine_passes_and_nothing_is_written(place: Path) -> None:
    before = sorted(place.rglob("*"))
    found = look(place)
    assert not found.failed, found.lines()
    assert sorted(place.rglob("*")) == sorted([*before, *(place / "bench").rglob("*"), place / "bench"])
    assert one(found, "checkpoint").value.startswith(f"{place}/model: 2 target and 0 draft layers, 48 tensors")
    assert found.lines()[-1].startswith("tiny: nothing stands in the way (")
    assert all(check.remedy for check in found.checks if check.status in (Status.FAIL, Status.WARN))


def test_a_broken_checkpoint(place: Path) -> None:
    shard = sorted((place / "model").glob("*.safetensors"))[0]
    os.truncate(shard, shard.stat().st_size - 1)
    found = look(place)
    check = one(found, "checkpoint")
    assert found.failed and check.status is Status.FAIL
    assert f"{shard}: truncated" in check.value and check.remedy == "download it again"
    assert one(found, "memory, folders, disk space").status is Status.SKIPPED


def test_a_download_that_was_cut_short(place: Path) -> None:
    shards = sorted((place / "model").glob("*.safetensors"))
    for shard in shards:
        shard.unlink()
    check = one(look(place), "checkpoint")
    assert check.status is Status.FAIL
    assert f"{len(shards)} of {len(shards)} shards are missing ({shards[0].name}, " in check.value
    assert "cut short" in check.remedy


def test_a_broken_index(place: Path) -> None:
    (place / "model/model.safetensors.index.json").write_text("[]")
    assert "holds no JSON object" in one(look(place), "checkpoint").value


def test_made_up_weights_have_neither_shards_nor_caches(place: Path) -> None:
    for file in [*(place / "model").glob("*.safetensors"), place / "model/model.safetensors.index.json"]:
        file.unlink()
    found = look(place, data=RECIPE | {"engine": RECIPE["engine"] | {"load-format": "dummy"}})
    assert not found.failed, found.lines()
    assert one(found, "checkpoint").status is Status.WARN and "every answer is noise" in one(found, "checkpoint").value
    assert one(found, "planes cache").status is Status.SKIPPED


def test_another_checkpoint_than_the_recipe_means(place: Path) -> None:
    model = RECIPE["model"] | {"geometry": {"experts": 4, "hidden": 128, "width": 128}}
    data = RECIPE | {"model": model, "w2": {"mapped_layers": []}}
    data |= {"expect": RECIPE["expect"] | {"mapped_layers": [], "mapped_bytes": 0}}
    check = one(look(place, data=data), "checkpoint")
    assert check.status is Status.FAIL and "model.geometry has hidden = 128, but" in check.value
    assert "set MODEL_PATH" in check.remedy


def test_no_checkpoint(place: Path) -> None:
    check = one(look(place, {"MODEL_PATH": "/nowhere"}), "checkpoint")
    assert (check.status, check.value) == (Status.FAIL, "model folder /nowhere does not exist")
    assert check.remedy == "set MODEL_PATH to the checkpoint's folder"


def test_a_port_in_use(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        check = one(look(place, {"PORT": str(busy.getsockname()[1])}), "port")
    assert check.status is Status.FAIL and "is in use" in check.value and "set PORT" in check.remedy


def test_an_open_port_without_a_key_is_a_warning(place: Path) -> None:
    assert one(look(place, {"HOST": "0.0.0.0"}), "port").status is Status.WARN
    assert one(look(place, {"HOST": "0.0.0.0", "VLLM_API_KEY": "k"}), "port").status is Status.OK


def test_a_setting_that_contradicts(place: Path) -> None:
    check = one(look(place, {"VLLM_MOE_W2_MAPPED_LAYERS": "0"}), "settings")
    assert check.status is Status.FAIL and "contradicts the recipe's '1'" in check.value


def test_a_variable_of_the_recipe_that_is_exported_with_another_value(place: Path) -> None:
    check = one(look(place, {"VLLM_CPU_KVCACHE_SPACE": "99999"}), "settings")
    assert check.status is Status.FAIL and check.remedy == "unset it or change the recipe"
    assert check.value == "VLLM_CPU_KVCACHE_SPACE='99999' contradicts the recipe's '1'"
    for value in ("1", ""):  # an empty one says nothing
        assert one(look(place, {"VLLM_CPU_KVCACHE_SPACE": value}), "settings").status is Status.OK


def test_what_the_launcher_s_own_variables_replace_contradicts_nothing(place: Path) -> None:
    """Nor does what no recipe says, such as VLLM_DEEP_GEMM_WARMUP, which is made to be exported."""
    data = RECIPE | {"environment": {"TRITON_CACHE_DIR": "/r", "CUDA_VISIBLE_DEVICES": "0"}}
    environ = {"CACHE_ROOT": str(place), "TRITON_CACHE_DIR": "/mine", "CUDA_VISIBLE_DEVICES": "1"}
    found = look(place, environ | {"VLLM_DEEP_GEMM_WARMUP": "skip"}, data)
    assert one(found, "settings").status is Status.OK
    alone = look(place, {"TRITON_CACHE_DIR": "/mine"}, data)
    assert "TRITON_CACHE_DIR='/mine' contradicts" in one(alone, "settings").value


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("VLLM_MOE_W2_FAST_LOAD_WORKERS", "9", "unset it, or name their folder by MOET_PLANES_CACHE_DIR"),
        ("VLLM_MOE_W2_FAST_LOAD_BATCH_LAYERS", "2", "unset it, or name their folder by MOET_PLANES_CACHE_DIR"),
        ("VLLM_MOE_W2_STORE_DIR", "/s", "unset it, or set the recipe's w2.correction.gb"),
        ("MOET_STORE_DIR", "/s", "unset it, or set the recipe's w2.correction.gb"),
        ("VLLM_MOE_W2_DELTA_POLICY", "lru", "unset it, or set the recipe's w2.correction.gb"),
    ],
)
def test_a_setting_that_nothing_reads_is_a_warning(place: Path, name: str, value: str, remedy: str) -> None:
    check = one(look(place, {name: value}), "setting")
    assert (check.status, check.remedy) == (Status.WARN, remedy)
    assert check.value.startswith(f"{name}={value} has no effect: no ")


def test_a_setting_that_is_read_is_none(place: Path) -> None:
    planes = folders(place, MOET_PLANES_CACHE_DIR=place / "planes") | {"VLLM_MOE_W2_FAST_LOAD_WORKERS": "9"}
    corrected = RECIPE | {"w2": {"mapped_layers": [1], "correction": {"gb": 1, "policy": "lru"}}}
    store = folders(place, MOET_STORE_DIR=place / "store")
    for found in (look(place), look(place, planes), look(place, store, corrected)):
        assert "setting" not in {check.thing for check in found.checks}


def test_block_scaled_kernels_need_their_gpu(place: Path) -> None:
    from moet_w2.kernels import block_scaled

    assert launch.BLOCK_SCALED_CAPABILITY == block_scaled.CAPABILITY
    check = one(look(place, {"VLLM_MOE_W2_BLOCK_SCALED": "1"}), "setting")
    said = "VLLM_MOE_W2_BLOCK_SCALED=1 needs a GPU of compute capability 12.x, not "
    assert (check.status, check.value, check.remedy) == (Status.FAIL, f"{said}a CPU", "unset it")
    on_gpu = recipe.load(write(place, RECIPE | {"device": {"kind": "cuda"}}))
    for capability, values in (((9, 0), [f"{said}compute capability 9.0"]), ((12, 0), [])):
        subject = Subject(on_gpu, None, {}, read(Nvml([Card(capability=capability)])))
        found = launch.check_effects(subject, W2Config(block_scaled=True))
        assert [check.value for check in found] == values


def test_a_refused_option(place: Path) -> None:
    found = look(place, data=RECIPE | {"engine": RECIPE["engine"] | {"enable-eplb": True}})
    check = one(found, "option")
    assert check.status is Status.FAIL and check.value.startswith("--enable-eplb")


def test_a_missing_program_and_an_audit_that_cannot_be_written(place: Path) -> None:
    (place / "bin/vllm").unlink()
    (place / "file").touch()
    found = look(place, {"W2_AUDIT_PATH": str(place / "file/audit.json")})
    assert "make setup" in one(found, "program").remedy
    assert one(found, "audit").status is Status.FAIL and one(found, "audit").remedy == "set W2_AUDIT_PATH"


@pytest.mark.parametrize(
    ("path", "said"), [("model", "model is a folder"), ("/proc/x/y", "/proc/x/y cannot be written (/proc)")]
)
def test_an_audit_that_root_could_write_by_permissions_alone(place: Path, monkeypatch, path: str, said: str) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    check = one(look(place, {"W2_AUDIT_PATH": str(place / path)}), "audit")
    assert check.status is Status.FAIL and check.value.endswith(said) and "set W2_AUDIT_PATH" in check.remedy


def test_a_file_that_a_start_would_replace(place: Path) -> None:
    (place / "notes.json").write_text("mine")
    check = one(look(place, {"W2_AUDIT_PATH": str(place / "notes.json")}), "audit")
    assert check.status is Status.FAIL and check.value.endswith("notes.json is no audit, and a start would replace it")
    assert check.remedy == "set W2_AUDIT_PATH to another file"


@pytest.fixture
def memlock(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))


def test_too_small_a_memlock_limit(place: Path, memlock) -> None:
    machine(place / "machine", proc__self__status="VmLck: 0 kB\nCapEff:\t0\nMems_allowed_list:\t0\n")
    check = one(look(place), "memlock limit")
    assert check.status is Status.FAIL and check.value.startswith("64.0 KiB left, 108.0 KiB to be locked")
    assert "ulimit -l unlimited" in check.remedy


def test_without_a_recipe_a_small_memlock_limit_is_no_fault(place: Path, memlock) -> None:
    root = machine(place / "machine", proc__self__status="VmLck: 0 kB\nCapEff:\t0\nMems_allowed_list:\t0\n")
    found = examine(None, None, {}, root, Nvml(broken="no driver"))
    assert not found.failed and one(found, "memlock limit").value == "64.0 KiB left"
    assert found.lines()[-1].startswith("this machine: ")


def test_too_little_memory_for_the_model_and_its_kv_cache(place: Path) -> None:
    machine(place / "machine", proc__meminfo=f"MemAvailable: {GIB >> 10} kB\n")
    check = one(look(place), "MemAvailable of the machine")
    assert check.status is Status.FAIL and check.value == "1.0 GiB left, 1.0 GiB needed"
    machine(place / "machine", proc__meminfo=f"MemAvailable: {(GIB >> 10) + 1024} kB\n")
    assert one(look(place), "MemAvailable of the machine").status is Status.OK


def test_a_cgroup_limit_counts(place: Path) -> None:
    files = {
        "proc__self__cgroup": "0::/box\n",
        "sys__fs__cgroup__box__memory.max": "1000\n",
        "sys__fs__cgroup__box__memory.current": "0\n",
        "sys__fs__cgroup__box__memory.stat": "inactive_file 0\n",
    }
    machine(place / "machine", **files)
    check = one(look(place), "memory limit of cgroup sys/fs/cgroup/box")
    assert check.status is Status.FAIL and "MemoryMax=" in check.remedy


def test_a_node_holds_the_mapped_layers_alone(place: Path) -> None:
    machine(place / "machine", sys__devices__system__node__node0__meminfo="Node 0 MemFree: 200 kB\n")
    assert one(look(place), "NUMA node 0").value == "200.0 KiB left, 108.0 KiB of mapped layers belong there"
    machine(place / "machine", sys__devices__system__node__node0__meminfo="Node 0 MemFree: 10 kB\n")
    assert one(look(place), "NUMA node 0").status is Status.FAIL


def test_an_unknown_node_on_a_machine_with_several(place: Path) -> None:
    two = {"sys__devices__system__node__online": "0-1\n", "sys__devices__system__node__node1__cpulist": "0-1023\n"}
    machine(place / "machine", **two)
    check = one(look(place), "NUMA node")
    assert check.status is Status.FAIL and "set VLLM_MOE_W2_MAPPED_NUMA_NODE" in check.remedy


def test_without_a_recipe_what_some_recipes_could_not_do_is_a_warning(place: Path) -> None:
    two = {"sys__devices__system__node__online": "0-1\n", "sys__devices__system__node__node1__cpulist": "0-1023\n"}
    root = machine(place / "machine", **two)
    found = examine(
        None, None, {"CUDA_HOME": "/nowhere"}, root, Nvml([Card(capability=(7, 5), pci="00000000:41:00.0")])
    )
    for thing in ("GPU 0 capability", "nvcc", "NUMA node"):
        assert one(found, thing).status is Status.WARN
    assert not found.failed


# --- folders ---------------------------------------------------------------------------------------------------------


def folders(place: Path, **names: Path) -> dict[str, str]:
    return {variable: str(folder) for variable, folder in names.items()}


def publish(place: Path, root: Path, layer: int) -> None:
    """A layer as the cache would hold it, its payload sparse."""
    (each,) = keys(place)
    directory = layout.make_folder(root, each)
    payload = layout.payload_path(directory, layer)
    payload.touch()
    os.truncate(payload, layout.HEAD + TINY.nbytes)
    layout.sidecar_path(directory, layer).write_text(
        layout.Sidecar(each.digest, layer, TINY.nbytes, "0" * 64).to_json()
    )


def keys(place: Path) -> list[key.CacheKey]:
    from moet_w2 import checkpoint

    return [key.make(checkpoint.inspect(place / "model"), TINY, Shard(0, 1))]


def test_what_the_cache_holds_already_is_not_counted_again(place: Path) -> None:
    root = place / "planes"
    environ = folders(place, MOET_PLANES_CACHE_DIR=root)
    empty = look(place, environ)
    assert "0 of 2 layers can be read (2 no-folder)" in one(empty, "planes cache").value
    assert "224.0 KiB to be written" in one(empty, "disk space").value  # two layers of 108 KiB and their 4 KiB heads
    assert not root.exists()
    publish(place, root, 0)
    half = look(place, environ)
    assert "1 of 2 layers can be read (1 no-payload)" in one(half, "planes cache").value
    assert "112.0 KiB to be written" in one(half, "disk space").value
    publish(place, root, 1)
    assert "all 2 layers can be read" in one(look(place, environ), "planes cache").value


@pytest.mark.parametrize(
    ("variable", "thing"), [("MOET_PLANES_CACHE_DIR", "planes cache"), ("MOET_STORE_DIR", "correction pack")]
)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("file", "{place}/file is no folder"),
        ("file/below", "{place}/file is no folder"),
        ("/proc/x/y", "/proc/x/y cannot be made: /proc cannot be written"),
    ],
)
def test_a_folder_that_no_start_could_make_fails(
    place: Path, monkeypatch, variable: str, thing: str, path: str, said: str
) -> None:
    """The start makes both folders, also that of a pack which no correction fills."""
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    (place / "file").touch()
    check = one(look(place, {variable: str(place / path)}), thing)
    assert check.status is Status.FAIL and check.value == said.format(place=place)
    assert check.remedy == f"set {variable} or CACHE_ROOT to a folder that can be written"


@pytest.mark.parametrize("path", ["file", "/proc/x/y"])
def test_compilers_need_a_folder_that_can_be_made(place: Path, monkeypatch, path: str) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    (place / "file").touch()
    assert one(look(place, {"CACHE_ROOT": str(place / path)}), "JIT caches").status is Status.FAIL


def test_the_pack_counts_the_layers_that_are_corrected(place: Path) -> None:
    root = place / "store"
    environ = folders(place, MOET_STORE_DIR=root)
    data = RECIPE | {"w2": {"mapped_layers": [1], "correction": {"gb": 1, "exclude_layers": [1]}}}
    found = one(look(place, environ, data), "correction pack")
    assert "rows of 0 of 1 layers; this start writes the rest, 192.0 KiB" in found.value  # 4 experts of 48 KiB
    (each,) = keys(place)
    directory = layout.make_folder(root, each)
    (directory / "pack-000.json").write_text(json.dumps({"key": "another", "layer": 0}))
    assert "rows of 0 of 1" in one(look(place, environ, data), "correction pack").value
    (directory / "pack-000.json").write_text(json.dumps({"key": each.digest, "layer": 0}))
    assert one(look(place, environ, data), "correction pack").value.endswith("rows of 1 of 1 layers")


def test_a_store_that_no_correction_fills_is_not_counted(place: Path) -> None:
    found = look(place, folders(place, MOET_STORE_DIR=place / "store"))
    assert one(found, "correction pack").status is Status.SKIPPED


def test_caches_of_compilers(place: Path, monkeypatch) -> None:
    assert one(look(place), "JIT caches").status is Status.SKIPPED
    environ = {"CACHE_ROOT": str(place / "root/deep")}
    assert one(look(place, environ), "JIT caches").value.startswith(f"{place}: ")
    assert not (place / "root").exists()
    monkeypatch.setattr(os, "statvfs", lambda path: _Full)
    assert one(look(place, environ), "JIT caches").status is Status.WARN
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert one(look(place, environ), "JIT caches").status is Status.FAIL


class _Full:
    f_bavail, f_frsize = 1, 4096


def test_a_full_disk(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: _Full)
    environ = folders(place, MOET_PLANES_CACHE_DIR=place / "planes", MOET_STORE_DIR=place / "store")
    data = RECIPE | {"w2": {"mapped_layers": [1], "correction": {"gb": 1}}}
    check = one(look(place, environ, data), "disk space")
    assert check.status is Status.FAIL and "planes cache and correction pack" in check.value
    assert check.value.startswith(f"4.0 KiB free at {place}, 608.0 KiB to be written")  # 224 and 384
    assert "free space there" in check.remedy


def test_a_folder_that_cannot_be_written_is_a_warning(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = [check for check in look(place, folders(place, MOET_PLANES_CACHE_DIR=place)).checks]
    warning = [check for check in found if check.thing == "planes cache" and check.status is Status.WARN]
    assert len(warning) == 1 and "will not be kept" in warning[0].value


def test_room_for_the_real_model(place: Path, monkeypatch) -> None:
    """README's numbers: 78 GB of planes for 43 layers, 139 GB of rows."""
    from moet_w2.checkpoint import CheckpointReport
    from moet_w2.placement import LayerPlan

    whole = LayerGeometry(256, 4096, 2048)
    made = CheckpointReport(place / "model", 43, 0, whole, 1, 1)
    data = RECIPE | {
        "model": {"path": "model", "served_name": "x"},
        "expect": RECIPE["expect"] | {"w2_layers": 43, "mapped_bytes": whole.nbytes},
    }
    subject = Subject(recipe.load(write(place, data)), None, {}, Absent("none"), place)
    settings = W2Config(planes_cache=place / "planes", store_dir=place / "store", delta_gib=6)
    found = list(storage.check(subject, settings, made, LayerPlan(43, 0, (), ())))
    assert [check.thing for check in found] == ["planes cache", "correction pack", "disk space"]
    assert f"{43 * (whole.nbytes + 4096) / GIB:.1f} GiB" in found[0].value and 77.5e9 < 43 * whole.nbytes < 78.5e9
    assert f"{43 * 256 * 12 * (1 << 20) / GIB:.1f} GiB" in found[1].value


# --- software --------------------------------------------------------------------------------------------------------


def versions(monkeypatch, vllm: str | None, torch: str | None, kind: str = "cuda", python: str | None = None) -> dict:
    table = {"vllm": vllm, "torch": torch}
    monkeypatch.setattr(software, "version_of", table.get)
    monkeypatch.setattr(software, "installed_variant", lambda: None)
    if python is not None:
        monkeypatch.setattr(software.platform, "python_version", lambda: python)
    subject = Subject(None, None, {}, Absent("none"))
    object.__setattr__(subject, "kind", kind)
    return {check.thing: check for check in software.check_versions(subject)}


def test_versions_of_this_environment_are_those_of_the_pins() -> None:
    found = list(software.check_versions(Subject(None, None, {}, Absent("none"))))
    assert [check.status for check in found] == [Status.OK] * 3


def test_pins_of_the_package_are_the_table_of_the_tree() -> None:
    table = Path(__file__).parents[2] / "pins.toml"
    assert pinned.FILE.read_bytes() == table.read_bytes()
    with pytest.raises(ConfigError, match="install the distribution again"):
        pinned.load("cpu", table.with_name("Makefile"))


def test_other_versions(monkeypatch) -> None:
    pins = pinned.load("cuda")
    public = pins.vllm.partition("+")[0]
    assert {c.status for c in versions(monkeypatch, pins.vllm, pins.torch).values()} == {Status.OK}
    stock = versions(monkeypatch, public, pins.torch)["vLLM"]
    assert stock.status is Status.WARN and "lacks this distribution's patch" in stock.value
    assert versions(monkeypatch, "0.1.0", pins.torch)["vLLM"].status is Status.FAIL
    assert versions(monkeypatch, None, pins.torch)["vLLM"].status is Status.FAIL
    assert versions(monkeypatch, pins.vllm, "1.0")["torch"].status is Status.FAIL
    assert versions(monkeypatch, pins.vllm, None)["torch"].status is Status.FAIL
    for_cpus = versions(monkeypatch, f"{public}+moet1.cpu", f"{pins.torch}+cpu")
    assert for_cpus["vLLM"].status is for_cpus["torch"].status is Status.FAIL
    assert "build-native.sh cuda" in for_cpus["torch"].remedy
    newer = versions(monkeypatch, pins.vllm, pins.torch, python="3.14.1")["Python"]
    assert newer.status is Status.WARN and pins.python in newer.value


def compiler(folder: Path, release: str, code: int = 0, message: str = "") -> Path:
    """A made-up nvcc below ``folder``/bin."""
    nvcc = folder / "bin/nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    told = f'echo "Cuda compilation tools, release {release}, V{release}.1"'
    nvcc.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {told}; exit; fi\necho "{message}" >&2; exit {code}\n')
    nvcc.chmod(0o755)
    return folder


def compilers(environ: dict, *cards: Card) -> dict:
    driver = read(Nvml(list(cards or (Card(),))))
    subject = Subject(None, None, {"PATH": "/usr/bin:/bin"} | environ, driver)
    return {check.thing: check for check in software.check_compilers(subject)}


def test_compilers_that_serving_needs(tmp_path: Path) -> None:
    wanted = ".".join(map(str, pinned.load("cuda").cuda))
    good = compilers({"CUDA_HOME": str(compiler(tmp_path / "a", wanted))})
    assert good["nvcc"].status is good["compilation"].status is Status.OK
    assert "sm_120a" in good["compilation"].value
    old = compilers({"CUDA_HOME": str(compiler(tmp_path / "b", "12.8"))})["nvcc"]
    assert old.status is Status.FAIL and "12.9 or later" in old.value and "CUDA_HOME" in old.remedy
    other = compilers({"CUDA_HOME": str(compiler(tmp_path / "c", "12.9"))})["nvcc"]
    assert other.status is Status.WARN
    none = compilers({"CUDA_HOME": str(tmp_path / "nowhere")})["nvcc"]
    assert none.status is Status.FAIL and "found neither" in none.value
    broken = compiler(tmp_path / "d", wanted, 1, "x.h: error: unsupported GNU version!")
    failed = compilers({"CUDA_HOME": str(broken)})["compilation"]
    assert failed.status is Status.FAIL and "unsupported GNU version" in failed.value


def test_a_missing_ninja_fails_where_there_is_no_other_attention(tmp_path: Path) -> None:
    home = {"CUDA_HOME": str(compiler(tmp_path, "13.0")), "PATH": str(tmp_path)}
    assert compilers(home)["ninja"].status is Status.FAIL
    assert compilers(home, Card(capability=(9, 0)))["ninja"].status is Status.WARN


# --- the report and the command ---------------------------------------------------------------------------------------


def test_an_error_in_a_check_is_its_failure() -> None:
    def raises(error: Exception):
        def look() -> None:
            raise error

        return report.made("thing", look, "look")[0]

    found = raises(ConfigError("X=1 is wrong; use 2"))
    assert (found.status, found.value, found.remedy) == (Status.FAIL, "X=1 is wrong", "use 2")
    assert raises(ConfigError("X=1 is wrong")).remedy == "look"
    assert raises(PermissionError(13, "Permission denied", "/proc/x")).status is Status.FAIL

    def half():
        yield report.ok("first", "x")
        raise ConfigError("Y is wrong; mend it")

    assert [check.thing for check in report.made("second", half, "")] == ["first", "second"]
    with pytest.raises(ZeroDivisionError):
        raises(ZeroDivisionError())


def test_lines_can_be_narrowed_to_what_matters(place: Path) -> None:
    found = look(place, {"MODEL_PATH": "/nowhere"})
    lines = found.lines(Status.FAIL)
    assert lines[0].startswith("fail") and lines[-1].startswith("tiny: not fit to serve (")
    assert not any(line.startswith("ok") for line in lines)


def test_command_and_its_exit_codes(place: Path, monkeypatch, capsys) -> None:
    for name in [name for name in os.environ if name.startswith(("VLLM_", "MOET_", "MODEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PORT", free_port())
    words = ["doctor", "--recipe", str(write(place, RECIPE)), "--json"]
    assert cli.main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] is False and document["about"] == "tiny"
    assert {"thing", "status", "value", "remedy", "seconds"} == set(document["checks"][0])
    assert sum(document["counts"].values()) == len(document["checks"])
    monkeypatch.setenv("MODEL_PATH", "/nowhere")
    assert cli.main(words[:-1]) == 1
    assert "fail" in capsys.readouterr().out
    monkeypatch.setenv("PORT", "many")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith("moet: error: PORT='many'")
    with pytest.raises(SystemExit) as usage:
        cli.main(["doctor", "--nonsense"])
    assert usage.value.code == 2


def test_help_tells_the_exit_codes(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--help"])
    text = capsys.readouterr().out
    assert "1 a check failed" in text and "MODEL_PATH" in text and text.count("exit status") == 1


def test_the_command_starts_without_torch() -> None:
    code = "import sys, moet_w2.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_wheel_carries_the_pins(tmp_path: Path) -> None:
    """On a copy of the project beside a table of its own."""
    extension = Path(__file__).resolve().parents[1]
    assert pinned.FILE.resolve() == extension.parent / "pins.toml"
    skipped = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__", "prebuilt")
    shutil.copytree(extension, tmp_path / "tree/runtime_ext", symlinks=True, ignore=skipped)
    table = (extension.parent / "pins.toml").read_text().replace("[project]\n", "[project]\n# another\n", 1)
    (tmp_path / "tree/pins.toml").write_text(table)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    folder = tmp_path / "tree/runtime_ext"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert archive.read("moet_w2/pins.toml").decode() == table


def test_the_demo_on_this_machine(monkeypatch, capsys) -> None:
    for name in [name for name in os.environ if name.startswith(("VLLM_", "MOET_", "MODEL_", "HOST", "CACHE_ROOT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PORT", free_port())
    demo = Path(__file__).parents[2] / "bench/recipes/demo-cpu.yaml"
    code = cli.main(["doctor", "--recipe", str(demo), "--json"])
    document = json.loads(capsys.readouterr().out)
    failed = {check["thing"] for check in document["checks"] if check["status"] == "fail"}
    # A shell may lock less than the demo maps; README says so. Everything else holds wherever the tests run.
    assert failed <= {"memlock limit"} and code == bool(failed)
    assert {"checkpoint", "port", "audit", "JIT caches"} <= {check["thing"] for check in document["checks"]}
