"""The audit: what was asked for, what there is, how it serves, as one JSON file that is always whole.

    loading   layers are being filled
    loaded    every layer is complete
    ready     warm-up and capture are over, and every rule of :mod:`moet_w2.audit_rules` holds
    refused   one does not; ``serving.problems`` says which, and the start ends

Under tensor parallelism every rank has a document of its own (:mod:`moet_w2.audit_ranks`).

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

from . import quantizer_abi
from .audit_rules import check, violations
from .audit_summary import summary
from .errors import AuditError
from .placement import Placement
from .shard import Shard

if TYPE_CHECKING:
    from .layer import W2Layer
    from .placement import LayerPlan

__all__ = ["SCHEMA_NAME", "SCHEMA_VERSION", "Audit", "check", "load", "schema", "summary", "violations"]
SCHEMA_NAME = "moet.audit"
SCHEMA_VERSION = 3
_LONGEST = 200
"""Characters of a message of jsonschema that a line takes over."""


class Audit:
    """Collects the facts of one worker process and writes them out.

    Attributes:
        path: file to write, or None to write nothing.
        plan: the placement that was asked for.
        device: name, type and NUMA facts of what computes.
        correction: policy, slots and bytes of the correction pool, or None.
        shard: this rank, and of how many; the only one unless said otherwise.
        server: what tells this start from any other one, the same on every rank.
        serving: what :mod:`moet_w2.metrics.serving` found once the engine could serve, or None before.
    """

    def __init__(
        self,
        path: Path | None,
        plan: LayerPlan,
        device: dict[str, Any],
        correction: dict[str, Any] | None = None,
        shard: Shard | None = None,
        server: str = "",
    ) -> None:
        self.path, self.plan, self.device, self.correction = path, plan, device, correction
        self.shard, self.server = shard or Shard(), server
        self.serving: dict[str, Any] | None = None
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

    def started(self, serving: dict[str, Any]) -> None:
        """The engine could serve: judge the whole audit, note the verdict, and write it.

        Args:
            serving: the facts, less ``problems``.

        Raises:
            AuditError: a rule does not hold; the first is spelled out, further ones are counted.
        """
        self.serving = serving | {"problems": []}
        problems = violations(self.document())
        self.serving["problems"] = problems
        self.write()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            where = f"; see {self.path}" if self.path else ""
            raise AuditError(f"the start ends, {problems[0].removeprefix('audit: ')}{more}{where}")

    def document(self) -> dict[str, Any]:
        """The audit as a JSON-serialisable dict."""
        layers = [self._layers[key] for key in sorted(self._layers)]
        mapped = [layer for layer in layers if layer["placement"] == Placement.MAPPED]
        return {
            "schema": SCHEMA_NAME,
            "schema_version": SCHEMA_VERSION,
            "written_unix": time.time(),
            "pid": os.getpid(),
            "tensor_parallel": {"server": self.server, "rank": self.shard.rank, "size": self.shard.size},
            "state": self._state(layers),
            "quantizer": {"abi": quantizer_abi.QUANTIZER_ABI, "zero_mode": quantizer_abi.ZERO_MODE},
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
            "serving": self.serving,
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

    def _state(self, layers: list[dict[str, Any]]) -> str:
        if not layers or any(layer["state"] != "ready" for layer in layers):
            return "loading"
        if self.serving is None:
            return "loaded"
        return "refused" if self.serving["problems"] else "ready"


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

    again = "start the server again, which writes a new one"
    try:
        document = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise AuditError(f"audit {path} does not exist; is the server that writes it up?") from None
    except OSError as error:
        raise AuditError(f"audit {path} cannot be read ({error.strerror}); name the file in W2_AUDIT_PATH") from None
    except ValueError as error:
        raise AuditError(f"audit {path} cannot be read as JSON ({error}); copy it again, or {again}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA_NAME:
        raise AuditError(f"{path} is no audit: its schema is not {SCHEMA_NAME}; name the file in W2_AUDIT_PATH")
    if (version := document.get("schema_version")) != SCHEMA_VERSION:
        raise AuditError(
            f"audit {path} is of schema version {version!r}, this moet reads {SCHEMA_VERSION}; read it with the moet "
            f"that served, or {again}"
        )
    try:
        jsonschema.validate(document, schema())
    except jsonschema.ValidationError as error:
        # The message may hold the whole of what is wrong: layers, for one.
        why = error.message if len(error.message) <= _LONGEST else f"{error.message[:_LONGEST]}..."
        raise AuditError(f"audit {path} breaks its schema at {error.json_path}: {why}; {again}") from None
    return document


def schema() -> dict[str, Any]:
    """The JSON Schema of the audit document."""
    return json.loads(resources.files(__package__).joinpath("schema/audit.schema.json").read_text())
