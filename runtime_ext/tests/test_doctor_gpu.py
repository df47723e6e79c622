"""The doctor's look at GPUs, through a made-up driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_nvml import GIB, Card, Nvml, machine
from recipe_text import VALID, write

from moet_w2 import command, recipe
from moet_w2.checkpoint import CheckpointReport
from moet_w2.config import W2Config
from moet_w2.doctor import gpus, memory, nvml
from moet_w2.doctor.report import Check, Status, made
from moet_w2.doctor.subject import Subject, visible
from moet_w2.geometry import LayerGeometry
from moet_w2.kernels import cubins
from moet_w2.overrides import Overrides

ON_GPU = {"kind": "cuda", "capability": ["12.0"], "vram_gib": 96}


def subject(root: Path, *cards: Card, device: dict | None = ON_GPU, environ: dict | None = None, **engine) -> Subject:
    """A recipe for a GPU on a machine with these cards; ``device`` None: no recipe."""
    driver = nvml.read(Nvml(list(cards or (Card(),))))
    if device is None:
        return Subject(None, None, environ or {}, driver, machine(root))
    data = VALID | {"device": device, "engine": VALID["engine"] | {k.replace("_", "-"): v for k, v in engine.items()}}
    loaded = recipe.load(write(root, data))
    return Subject(loaded, command.render(loaded, Overrides()), environ or {}, driver, machine(root))


def checked(found: Subject) -> dict[str, Check]:
    return {check.thing: check for check in made("GPU", lambda: gpus.check(found), "")}


def one(found: Subject, thing: str) -> Check:
    return checked(found)[thing]


def test_facts_of_a_card(tmp_path: Path) -> None:
    library = Nvml([Card(compute=((7, 3 * GIB), (8, None)), graphics=((9, 5 * GIB),))], cuda=12090)
    driver = nvml.read(library)
    assert (driver.version, driver.cuda, library.opened) == ("580.95.05", (12, 9), 0)
    (gpu,) = driver.gpus
    assert gpu.name.startswith("NVIDIA RTX PRO 6000") and gpu.pci == "0000:31:00.0"
    assert gpu.link == nvml.Link(5, 16, 5, 16) and gpu.state == 0 and not gpu.mig
    assert [held.pid for held in gpu.processes] == [9, 7, 8]


def test_facts_that_a_driver_does_not_offer_are_none() -> None:
    (gpu,) = nvml.read(Nvml([Card(link=None, state=None, compute=None)])).gpus
    assert gpu.processes == ()
    assert gpu.link is None and gpu.state is None
    (gpu,) = nvml.read(Nvml([Card(link=(0, 0, 0, 0))])).gpus
    assert gpu.link is None


def test_a_driver_that_does_not_answer() -> None:
    assert nvml.read(Nvml(broken="NVML Shared Library Not Found")) == nvml.Absent("NVML Shared Library Not Found")


def test_a_good_card_passes(tmp_path: Path) -> None:
    found = checked(subject(tmp_path))
    assert {check.status for check in found.values()} == {Status.OK}
    assert list(found) == ["driver", "GPUs", "GPU 0 capability", "GPU 0 memory", "GPU 0 PCIe link"]


def test_without_a_driver_a_gpu_recipe_fails_and_a_cpu_recipe_does_not(tmp_path: Path) -> None:
    absent = nvml.Absent("no library")
    on_gpu = subject(tmp_path)
    lost = one(Subject(on_gpu.recipe, on_gpu.command, {}, absent, tmp_path), "GPU")
    assert lost.status is Status.FAIL and "no library" in lost.value and "install the NVIDIA driver" in lost.remedy
    on_cpu = recipe.load(write(tmp_path, VALID | {"device": {"kind": "cpu"}}))
    found = one(Subject(on_cpu, command.render(on_cpu, Overrides()), {}, absent, tmp_path), "GPU")
    assert found.status is Status.SKIPPED and "not applicable" in found.value
    alone = one(Subject(None, None, {}, absent, tmp_path), "GPU")
    assert alone.status is Status.SKIPPED and "no library" in alone.value


def test_an_old_driver_fails(tmp_path: Path) -> None:
    old = subject(tmp_path)
    driver = nvml.read(Nvml(cuda=12040, driver="550.1"))
    found = one(Subject(old.recipe, old.command, {}, driver, tmp_path), "driver")
    assert found.status is Status.FAIL and "550.1, runs CUDA up to 12.4" in found.value and found.remedy


def test_a_newer_driver_of_the_same_major_version_passes(tmp_path: Path) -> None:
    old = subject(tmp_path)
    driver = nvml.read(Nvml(cuda=13050))
    assert one(Subject(old.recipe, old.command, {}, driver, tmp_path), "driver").status is Status.OK


@pytest.mark.parametrize(
    ("selection", "indices"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-b", [1]), ("", []), ("-1", []), ("0,7,1", [0]), ("GPU-", [])],
)
def test_cuda_visible_devices(selection: str | None, indices: list[int]) -> None:
    cards = nvml.read(Nvml([Card(uuid="GPU-a1"), Card(uuid="GPU-b2")])).gpus
    assert [gpu.index for gpu in visible(cards, selection)] == indices


@pytest.mark.parametrize(
    ("cards", "environ", "engine", "status", "words"),
    [
        ([Card()], {"CUDA_VISIBLE_DEVICES": "3"}, {}, Status.FAIL, "0 of 1 visible (CUDA_VISIBLE_DEVICES=3)"),
        ([Card()], {}, {"tensor_parallel_size": 2}, Status.FAIL, "1 of 1 visible; 2 needed"),
        ([Card(mig=(1, 1))], {}, {}, Status.FAIL, "divided (MIG)"),
        ([Card(), Card(name="other")], {}, {}, Status.WARN, "of several kinds"),
        ([Card(), Card(name="other")], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {}, Status.OK, "2 of 2"),
    ],
)
def test_selection(tmp_path: Path, cards, environ, engine, status, words) -> None:
    found = one(subject(tmp_path, *cards, environ=environ, **engine), "GPUs")
    assert found.status is status and words in found.value


def test_a_card_that_no_cubin_runs_on_fails(tmp_path: Path) -> None:
    found = one(subject(tmp_path, Card(capability=(7, 5))), "GPU 0 capability")
    assert found.status is Status.FAIL
    assert "compute capability 7.5" in found.value and "serve without" in found.remedy


def test_another_card_than_the_recipe_means_is_a_warning(tmp_path: Path) -> None:
    found = one(subject(tmp_path, Card(name="NVIDIA H200", capability=(9, 0))), "GPU 0 capability")
    assert found.status is Status.WARN and "made for 12.0" in found.value and "moet plan" in found.remedy


def test_every_server_kernel_is_asked_for() -> None:
    sources = {path.stem for path in (cubins.PREBUILT / "cubins" / "sm_90a").iterdir()}
    assert sources == set(gpus.KERNELS)


def test_memory_that_others_hold(tmp_path: Path) -> None:
    found = one(subject(tmp_path, Card(free=80 * GIB, compute=((77, 15 * GIB), (78, None)))), "GPU 0 memory")
    assert found.status is Status.FAIL
    assert "80.0 of 96.0 GiB free; gpu-memory-utilization 0.92 needs 88.3" in found.value
    assert "held by a process of another container or user (77) 15.0 GiB" in found.value
    assert "end what holds the rest" in found.remedy


def test_the_holder_is_named_where_it_can_be_seen(tmp_path: Path) -> None:
    held = subject(tmp_path, Card(free=1, compute=((77, 95 * GIB),)))
    (tmp_path / "proc/77").mkdir()
    (tmp_path / "proc/77/comm").write_text("VLLM::EngineCor\n")
    assert "held by VLLM::EngineCor (77) 95.0 GiB" in one(held, "GPU 0 memory").value


def test_memory_that_nobody_visible_holds(tmp_path: Path) -> None:
    found = one(subject(tmp_path, Card(free=60 * GIB)), "GPU 0 memory")
    assert "36.0 GiB are held by nobody that can be seen from here" in found.value


def test_the_recipes_share_decides(tmp_path: Path) -> None:
    card = Card(free=94 * GIB)
    assert one(subject(tmp_path, card, gpu_memory_utilization=0.97), "GPU 0 memory").status is Status.OK
    assert one(subject(tmp_path, card, gpu_memory_utilization=0.99), "GPU 0 memory").status is Status.FAIL


def test_a_smaller_card_than_the_recipe_means_fails(tmp_path: Path) -> None:
    found = one(subject(tmp_path, Card(total=80 * GIB, free=80 * GIB)), "GPU 0 memory")
    assert found.status is Status.FAIL and "made for a card of 96 GiB" in found.value


@pytest.mark.parametrize(
    ("link", "state", "status", "words"),
    [
        ((5, 16, 5, 16), 0, Status.OK, "generation 5 x16 now"),
        ((1, 16, 5, 16), 8, Status.WARN, "the GPU is at rest (P8) and lowers its link"),
        ((1, 16, 5, 16), None, Status.WARN, "the GPU is at rest and lowers its link"),
        ((4, 16, 5, 16), 0, Status.WARN, "the GPU is busy"),
        ((5, 8, 5, 16), 0, Status.WARN, "mapped layers are read at its speed; put the card into a slot"),
        (None, 0, Status.SKIPPED, "tells nothing of a link"),
    ],
)
def test_link(tmp_path: Path, link, state, status, words) -> None:
    found = one(subject(tmp_path, Card(link=link, state=state)), "GPU 0 PCIe link")
    assert found.status is status and words in f"{found.value}; {found.remedy}"


def test_a_machine_without_a_recipe_tells_of_every_card(tmp_path: Path) -> None:
    found = checked(subject(tmp_path, Card(free=1), Card(), device=None))
    assert {"GPU 0 memory", "GPU 1 memory"} <= set(found)
    assert {check.status for check in found.values()} == {Status.OK}


def test_weights_that_cannot_fit(tmp_path: Path) -> None:
    whole = LayerGeometry(256, 4096, 2048)
    report = CheckpointReport(tmp_path, 46, 0, whole, 1, 46 * memory.expert_bytes(whole))
    found = subject(tmp_path)
    (fits,) = gpus.check_weights(found, W2Config(mapped_layers=(2, 3)), report)
    assert fits.status is Status.OK  # the recipe serves four layers
    (full,) = gpus.check_weights(found, W2Config(delta_gib=90), report)
    assert full.status is Status.FAIL and full.value.startswith("96.8 GiB at least (4 W2 layers")


def test_processes_are_asked_for_by_the_versions_that_raise_what_is_caught() -> None:
    """pynvml's names without a version raise NVMLLibraryMismatchError, no NVMLError, where the driver is older."""
    real = pytest.importorskip("pynvml")
    assert hasattr(real.nvmlDeviceGetComputeRunningProcesses, "__wrapped__")
    asked = [name for name in vars(Nvml) if "RunningProcesses" in name]
    assert len(asked) == 2
    for name in asked:
        assert not hasattr(getattr(real, name), "__wrapped__"), name
