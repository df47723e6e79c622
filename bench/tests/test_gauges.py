"""Power and PCIe sampled through a stand-in for NVML."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from sampled_nvml import Nvml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from runner.gauges import Gauges


def seen(library: Nvml, seconds: float = 0.05) -> dict:
    with Gauges("0", library).phase(every=0.01) as told:
        time.sleep(seconds)
    return told()


def test_a_phase_has_mean_and_most_of_what_was_sampled() -> None:
    found = seen(Nvml())
    many = found["samples"]
    assert many >= 2
    assert found["power_watts"] == {"mean": pytest.approx(150 + 50 * many), "most": pytest.approx(100 + 100 * many)}
    assert found["pcie_to_gpu_gb_per_s"]["mean"] == pytest.approx(51.4)
    assert found["pcie_from_gpu_gb_per_s"]["most"] == pytest.approx(1e-3)
    assert found["busy_percent"] == {"mean": 63.0, "most": 63.0}
    assert found["energy_joules"] == 7 and found["link"] == {"generation": 5, "width": 16}


def test_what_a_device_does_not_tell_is_left_out() -> None:
    found = seen(
        Nvml(
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetUtilizationRates",
        )
    )
    assert found["busy_percent"] is None
    assert found["power_watts"] is None and found["energy_joules"] is None and found["link"] is None
    assert found["pcie_to_gpu_gb_per_s"]["most"] == pytest.approx(51.4)


def test_without_a_driver_there_is_a_reason_and_no_sample() -> None:
    gauges = Gauges("0", Nvml("nvmlInit"))
    assert gauges.absent == "nvmlInit: not supported"
    with gauges.phase() as told:
        pass
    assert told() is None


def test_without_the_library_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gauges("0").absent == "nvidia-ml-py is not installed"


def test_a_device_is_found_by_number_or_uuid() -> None:
    assert [Gauges(name, Nvml())._device for name in ("3", "GPU-ab")] == ["device 3", "device GPU-ab"]


def test_the_stand_in_has_the_names_of_the_real_one() -> None:
    real = pytest.importorskip("pynvml")
    for name in dir(Nvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(real, name), name
    assert (real.NVML_PCIE_UTIL_TX_BYTES, real.NVML_PCIE_UTIL_RX_BYTES) == (0, 1)


def test_a_phase_that_fails_still_ends_its_thread() -> None:
    with pytest.raises(ValueError), Gauges("0", Nvml()).phase(every=0.01) as told:
        raise ValueError
    assert told()["samples"] >= 1
