"""The placement audit: what was asked for, what there is, as one JSON file that is always whole.

The document's schema is ``schema/audit.schema.json``; its version changes when a field changes meaning.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import codebook, dummy
from .errors import AuditError
from .placement import Placement

if TYPE_CHECKING:
    from .layer import W2Layer
    from .placement import LayerPlan
    from .recipe import Recipe

SCHEMA_NAME = "moet.audit"
SCHEMA_VERSION = 1


class Audit:
    """Collects the facts of one worker process and writes them out.

    Attributes:
        path: file to write, or None to write nothing.
        plan: the placement that was asked for.
        device: name, type and NUMA facts of what computes.
        correction: policy, slots and bytes of the correction pool, or None.
    """

    def __init__(
        self, path: Path | None, plan: LayerPlan, device: dict[str, Any], correction: dict[str, Any] | None = None
    ) -> None:
        self.path, self.plan, self.device, self.correction = path, plan, device, correction
        self._layers: dict[int, dict[str, Any]] = {}

    def created(self, layer: W2Layer, allocator_bytes: int) -> None:
        """A layer has its memory, for which the device's allocator grew by ``allocator_bytes``."""
        self._layers[layer.key] = _describe(layer, self.plan.correctable(layer.key), allocator_bytes)

    def loaded(self, layer: W2Layer, redundant_bytes: int) -> None:
        """A layer is complete; ``redundant_bytes`` of it were found a second time on the device."""
        facts = {"state": "ready", "origin": layer.origin, "redundant_bytes": redundant_bytes}
        self._layers[layer.key] |= facts
        if all(entry["state"] == "ready" for entry in self._layers.values()):
            self.write()

    def dispatched(self, layer: W2Layer) -> None:
        """A layer has computed for the first time."""
        self._layers[layer.key]["first_dispatch_unix"] = time.time()
        if all(entry["first_dispatch_unix"] for entry in self._layers.values()):
            self.write()

    def document(self) -> dict[str, Any]:
        """The audit as a JSON-serialisable dict."""
        layers = [self._layers[key] for key in sorted(self._layers)]
        mapped = [layer for layer in layers if layer["placement"] == Placement.MAPPED]
        return {
            "schema": SCHEMA_NAME,
            "schema_version": SCHEMA_VERSION,
            "written_unix": time.time(),
            "pid": os.getpid(),
            "state": "ready" if layers and all(layer["state"] == "ready" for layer in layers) else "loading",
            "quantizer": {"abi": codebook.QUANTIZER_ABI, "zero_mode": codebook.ZERO_MODE},
            "device": self.device,
            "target_layers": self.plan.target_layers,
            "draft_layers": self.plan.draft_layers,
            "configured_mapped_layers": list(self.plan.mapped),
            "allocated_mapped_layers": [layer["key"] for layer in mapped],
            "uncorrected_layers": list(self.plan.uncorrected),
            "mapped_bytes": sum(layer["bytes"] for layer in mapped),
            "w2_bytes": sum(layer["bytes"] for layer in layers),
            "correction": self.correction,
            "redundant_gpu_w2_bytes": sum(layer["redundant_bytes"] or 0 for layer in layers),
            "layers": layers,
        }

    def write(self) -> None:
        """Replace the file in one step, so that a reader sees the old audit or the new one."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("w") as file:
            json.dump(self.document(), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


def _describe(layer: W2Layer, correctable: bool, allocator_bytes: int) -> dict[str, Any]:
    host = layer.host
    return {
        "key": layer.key,
        "placement": str(layer.placement),
        "state": "loading",
        "origin": None,
        "correctable": correctable,
        "bytes": layer.geometry.nbytes,
        "geometry": {
            "experts": layer.geometry.experts,
            "hidden": layer.geometry.hidden,
            "width": layer.geometry.width,
        },
        "parts": {name: {"offset": part.offset, "bytes": part.nbytes} for name, part in layer.geometry.parts.items()},
        "address": layer.storage.data_ptr(),
        "allocator_bytes": allocator_bytes,
        "redundant_bytes": None,
        "first_dispatch_unix": None,
        "host": None
        if host is None
        else {
            "address": host.address,
            "device_address": host.device_address,
            "uva_equal": None if host.device_address is None else host.device_address == host.address,
            "locked_bytes": host.mapped_bytes,
            "huge_bytes": host.pages.huge_bytes,
            "page_bytes": host.pages.page_bytes,
            "pages_by_node": {str(node): count for node, count in sorted(host.pages.by_node.items())},
            "pages_note": host.pages.note,
            "seconds": asdict(host.seconds),
        },
    }


def load(path: str | Path) -> dict[str, Any]:
    """Read an audit file and hold it against its schema.

    Raises:
        AuditError: the file is missing, not JSON, or not an audit of this schema version.
    """
    import jsonschema

    try:
        document = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise AuditError(f"audit {path} does not exist; is the server that writes it up?") from None
    except (OSError, ValueError) as error:
        raise AuditError(f"audit {path} cannot be read as JSON: {error}") from None
    try:
        jsonschema.validate(document, schema())
    except jsonschema.ValidationError as error:
        raise AuditError(f"audit {path} breaks its schema at {error.json_path}: {error.message}") from None
    return document


def schema() -> dict[str, Any]:
    """The JSON Schema of the audit document."""
    return json.loads(resources.files(__package__).joinpath("schema/audit.schema.json").read_text())


def check(document: dict[str, Any], recipe: Recipe) -> list[str]:
    """Judge an audit by the recipe that served.

    Args:
        document: an audit as :func:`load` returns it.
        recipe: the recipe.

    Returns:
        one line for each disagreement; empty when the audit holds.
    """
    expect = recipe.expect
    wanted = list(expect.mapped_layers)
    facts = [
        ("state", document["state"], "ready"),
        ("quantizer abi", document["quantizer"]["abi"], codebook.QUANTIZER_ABI),
        ("zero mode", document["quantizer"]["zero_mode"], codebook.ZERO_MODE),
        ("configured mapped layers", document["configured_mapped_layers"], wanted),
        ("allocated mapped layers", document["allocated_mapped_layers"], wanted),
        ("mapped bytes", document["mapped_bytes"], expect.mapped_bytes),
        ("W2 layers", len(document["layers"]), expect.w2_layers),
        ("redundant GPU W2 bytes", document["redundant_gpu_w2_bytes"], 0),
        ("correction bytes", (document["correction"] or {}).get("bytes", 0), _correction_bytes(document, recipe)),
        ("uncorrected layers", document["uncorrected_layers"], list(recipe.w2.exclude_layers)),
    ]
    problems = [f"audit: {name} is {found}, the recipe expects {want}" for name, found, want in facts if found != want]
    for layer in document["layers"]:
        problems += _check_layer(layer)
    return problems


def _correction_bytes(document: dict[str, Any], recipe: Recipe) -> int:
    """Bytes of the pool that the recipe asks for, in whole rows of this model."""
    row = (document["correction"] or {}).get("row_bytes", 1)
    return int(recipe.w2.correction.gb * 2**30) // row * row


def _check_layer(layer: dict[str, Any]) -> list[str]:
    problems, end = [], 0
    for name, part in layer["parts"].items():
        if part["offset"] != end:
            problems.append(f"audit: layer {layer['key']}: {name} begins at {part['offset']}, expected {end}")
        end = part["offset"] + part["bytes"]
    if end != layer["bytes"]:
        problems.append(f"audit: layer {layer['key']}: its parts end at {end}, it holds {layer['bytes']} bytes")
    if layer["origin"] == dummy.ORIGIN:
        problems.append(f"audit: layer {layer['key']}: its weights are made up (--load-format {dummy.LOAD_FORMAT})")
    if layer["redundant_bytes"] != 0:
        problems.append(f"audit: layer {layer['key']}: redundant bytes are {layer['redundant_bytes']}, expected 0")
    host = layer["host"]
    if (host is not None) != (layer["placement"] == Placement.MAPPED):
        problems.append(f"audit: layer {layer['key']}: placement {layer['placement']} and its host record disagree")
    if host is not None:
        if layer["allocator_bytes"]:
            problems.append(f"audit: layer {layer['key']}: mapped, yet it took {layer['allocator_bytes']} device bytes")
        if host["uva_equal"] is False:
            problems.append(f"audit: layer {layer['key']}: the device's pointer is not the host's")
        pages = sum(host["pages_by_node"].values())
        if not host["pages_note"] and pages * host["page_bytes"] != host["locked_bytes"]:
            problems.append(
                f"audit: layer {layer['key']}: {pages} pages verified, not its {host['locked_bytes']} bytes"
            )
        if len(host["pages_by_node"]) > 1:
            problems.append(f"audit: layer {layer['key']}: pages on several nodes: {host['pages_by_node']}")
    return problems


def summary(document: dict[str, Any]) -> str:
    """A few lines for a person."""
    lines = [
        f"state            {document['state']}",
        f"device           {document['device']['name']} ({document['device']['type']})",
        f"quantizer        abi {document['quantizer']['abi']}, zeros {document['quantizer']['zero_mode']}",
        f"W2 layers        {len(document['layers'])}, {document['w2_bytes']:,} bytes",
        f"mapped layers    {_keys(document['allocated_mapped_layers'])}, {document['mapped_bytes']:,} bytes",
        f"redundant bytes  {document['redundant_gpu_w2_bytes']:,}",
    ]
    for layer in document["layers"]:
        if layer["host"]:
            pages = ", ".join(f"{count:,} on node {node}" for node, count in layer["host"]["pages_by_node"].items())
            lines.append(f"  layer {layer['key']:<3}      pages: {pages or layer['host']['pages_note']}")
    return "\n".join(lines)


def _keys(keys: list[int]) -> str:
    return ", ".join(map(str, keys)) or "none"
