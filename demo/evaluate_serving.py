"""The demo checkpoint behind the real server, with settings of an evaluation's own; one server at a time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open

from moet_w2 import checkpoint
from moet_w2.cache import key as cache_key
from moet_w2.correction.store import Pack
from moet_w2.layer import PROJECTIONS, Shard
from validation import ready
from validation.local import engine_lock, free_port

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "bench" / "recipes" / "demo-cpu.yaml"
CHECKPOINT = ROOT / "demo" / "checkpoint"
MODEL = "moet-demo"
READY_SECONDS, STOP_SECONDS = 300, 60

sys.path.insert(0, str(ROOT / "scripts" / "lib"))

import stop_session  # noqa: E402


@contextmanager
def server(
    folder: Path, settings: Mapping[str, str], stock: bool = False, engine: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Serve the demo recipe until the block ends; when it has ended, so has every process of the server.

    Args:
        folder: receives the recipe, the audit and the log.
        settings: VLLM_MOE_W2 settings, by their whole names.
        stock: vLLM's own experts.
        engine: engine options that differ from the recipe's.

    Yields:
        the API's address, without /v1.

    Raises:
        ready.NotReady: it did not start; the log says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = yaml.safe_load(RECIPE.read_text())
    document["engine"] |= dict(engine or {})
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(document, sort_keys=False))
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    environment = kept | {"PORT": str(port), "W2_AUDIT_PATH": str(folder / "audit.json")} | dict(settings)
    moet = Path(sys.executable).with_name("moet")
    command = [moet, "serve", "--recipe", recipe, "--root", ROOT, *(["--stock"] if stock else [])]
    url = f"http://127.0.0.1:{port}"
    with engine_lock(), (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ready.wait(url, READY_SECONDS, process.pid)
            yield url
        finally:
            stop_session.stop(process.pid, STOP_SECONDS)
            process.wait()


def expert_weights(layers: Iterable[int]) -> Iterator[tuple[tuple[int, int, str], torch.Tensor]]:
    """(layer, expert, projection) and MXFP4 codes, uint8 ``[N, K / 2]``, of the demo checkpoint's routed experts."""
    index = json.loads((CHECKPOINT / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safe_open(CHECKPOINT / name, "pt") for name in set(index.values())}
    experts = checkpoint.inspect(CHECKPOINT).geometry.experts
    for layer, expert, projection in itertools.product(layers, range(experts), PROJECTIONS):
        name = f"layers.{layer}.ffn.experts.{expert}.{projection}.weight"
        yield (layer, expert, projection), files[index[name]].get_tensor(name).view(torch.uint8)


def whole_pack(store: Path) -> Pack:
    """The demo checkpoint's correction pack, every layer in it, as a server's first start would leave it."""
    report = checkpoint.inspect(CHECKPOINT)
    pack = Pack(store, cache_key.make(report, report.geometry, Shard()))
    for place, weight in expert_weights(range(report.target_layers)):
        pack.put(*place, weight)
    for layer in range(report.target_layers):
        pack.seal(layer)
    return pack
