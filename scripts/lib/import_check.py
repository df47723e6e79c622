"""The last step of an environment: import what was installed and compare it with the pins."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pins as pin_table
from build_errors import BuildError

_PROBE = """
import importlib.metadata as metadata, json, sys
facts = {"distribution": metadata.version("vllm")}
names = {point.name for point in metadata.entry_points(group="vllm.general_plugins")}
facts["plugin"] = "moet_w2" in names
import torch
facts["torch"] = torch.__version__
facts["torch_git"] = torch.version.git_version
facts["torch_cuda"] = torch.version.cuda
import vllm
from vllm.platforms import current_platform
facts["vllm"] = vllm.__version__
facts["platform"] = current_platform.device_type
try:
    facts["gpus"] = torch.cuda.device_count()
except Exception as error:
    facts["gpus"] = 0
import vllm.model_executor.models.registry
json.dump(facts, sys.stdout)
"""


def run(python: Path, pins: pin_table.Pins, variant: str) -> dict[str, object]:
    """Import vLLM in the environment and check versions and platform. Returns the facts.

    Raises BuildError with the last line of the failure or the first fact that is wrong. On a machine
    without a GPU the `cuda` variant is checked up to the choice of a platform and says so.
    """
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    done = subprocess.run([str(python), "-c", _PROBE], env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"the finished {variant} environment cannot import vLLM: {last}")
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    for name, wanted in expected(pins, variant, bool(facts["gpus"])).items():
        if facts[name] != wanted:
            raise BuildError(f"the finished {variant} environment has {name} {facts[name]!r}, not {wanted!r}")
    return facts


def expected(pins: pin_table.Pins, variant: str, has_gpu: bool) -> dict[str, object]:
    """What the facts must be. Without a GPU vLLM's CUDA build chooses no platform at all."""
    facts: dict[str, object] = {
        "distribution": pins.our_version(variant),
        "vllm": pins.get("vllm.version"),
        "torch_git": pins.get("torch.git"),
        "plugin": (pin_table.ROOT / "runtime_ext" / "pyproject.toml").is_file(),
    }
    if variant == "cpu":
        facts |= {"torch": pins.get("torch.cpu.version"), "torch_cuda": None, "platform": "cpu"}
    else:
        facts["platform"] = "cuda" if has_gpu else ""
    return facts
