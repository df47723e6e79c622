"""A look at a checkpoint folder before anything is loaded: is it whole, and is it what W2 serves?

Reads config.json, the index and the shards' headers, never a payload. The safetensors header format is the
one of the safetensors library: 8 bytes little-endian length, then JSON.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .geometry import SCALE_BLOCK, LayerGeometry
from .shard import KINDS, PROJECTIONS

INDEX = "model.safetensors.index.json"
_EXPERT = re.compile(r"^(layers|mtp)\.(\d+)\.ffn\.experts\.")
_MAX_HEADER = 1 << 28
_FIELDS = ("num_hidden_layers", "n_routed_experts", "hidden_size", "moe_intermediate_size")


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint holds, in the terms W2 needs.

    Attributes:
        path: its folder.
        target_layers: number of target layers.
        draft_layers: number of DSpark draft layers stored beside them.
        geometry: one layer of routed experts at tensor-parallel size 1.
        tensors: number of tensors.
        nbytes: payload bytes of all of them.
    """

    path: Path
    target_layers: int
    draft_layers: int
    geometry: LayerGeometry
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class _Entry:
    shard: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def inspect(path: str | Path) -> CheckpointReport:
    """Check a checkpoint folder.

    Args:
        path: folder with config.json, the index and the shards it names.

    Returns:
        what it holds.

    Raises:
        CheckpointError: it is not a folder, not DeepSeek-V4, its experts are not MXFP4, a shard is missing or
            truncated, or an expert tensor is missing, extra or of the wrong dtype or shape.
    """
    described = describe(path)
    folder, layers, geometry = described.path, described.target_layers, described.geometry
    entries = _read_entries(folder)
    drafts = len({m.group(2) for m in map(_EXPERT.match, entries) if m and m.group(1) == "mtp"})
    _check_experts(entries, layers, drafts, geometry)
    return CheckpointReport(
        folder, layers, drafts, geometry, len(entries), sum(entry.nbytes for entry in entries.values())
    )


def describe(path: str | Path) -> CheckpointReport:
    """What config.json alone says, for weights that are made up: no tensors, and draft layers not counted.

    Args:
        path: folder with config.json.

    Raises:
        CheckpointError: it is not a folder, not DeepSeek-V4, or its experts are not MXFP4.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"model folder {folder} {what}; give the folder that holds config.json")
    config = read_config(folder)
    geometry = LayerGeometry(config["n_routed_experts"], config["hidden_size"], config["moe_intermediate_size"])
    return CheckpointReport(folder, config["num_hidden_layers"], 0, geometry, 0, 0)


def check_tokenizer(folder: Path) -> None:
    """Refuse a checkpoint whose tokenizer would end a server long after its start began.

    Raises:
        CheckpointError: tokenizer.json is missing, or is not the tokenizers library's.
    """
    path = folder / "tokenizer.json"
    if not isinstance(_read_json(path).get("model"), dict):
        raise CheckpointError(f"{path}: has no model, so it is no tokenizer; download it again")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a DeepSeek-V4 checkpoint with MXFP4 experts.

    Raises:
        CheckpointError: the file is missing, broken, or describes another model or other experts.
    """
    config = _read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind != "deepseek_v4":
        what = "config.json has no model_type" if kind is None else f"model_type is {kind!r}"
        raise CheckpointError(
            f"{folder}: {what}; moet_w2 serves deepseek_v4 checkpoints only: set MODEL_PATH to the folder of one"
        )
    quantization = config.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise CheckpointError(
            f"{folder}: config.json has a {type(quantization).__name__} as quantization_config, where an object is "
            "needed; download config.json again"
        )
    check_experts_are_mxfp4(str(folder), config.get("expert_dtype", "fp4"), quantization)
    for field in _FIELDS:
        if type(config.get(field)) is not int or config[field] < 1:
            raise CheckpointError(
                f"{folder}: config.json has {field}={config.get(field)!r}; a positive integer is needed"
            )
    return config


def check_experts_are_mxfp4(where: str, expert_dtype: str, quantization: dict[str, Any]) -> None:
    """Refuse a checkpoint whose routed experts are not MXFP4.

    Raises:
        CheckpointError: they are FP8, NVFP4, unquantised or of another format.
    """
    method = quantization.get("quant_method")
    algorithm = str(quantization.get("moe_quant_algo") or "").upper()
    if method not in ("fp8", "deepseek_v4_fp8") or expert_dtype != "fp4" or algorithm not in ("", "MXFP4"):
        raise CheckpointError(
            f"{where}: routed experts are not MXFP4 (quant_method {method!r}, expert_dtype {expert_dtype!r}, "
            f"moe_quant_algo {algorithm or None!r}); serve it without --quantization moet_w2"
        )


def _read_entries(folder: Path) -> dict[str, _Entry]:
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX}: no weight_map; download the checkpoint again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(
                f"{folder / INDEX}: places {name} in {shard!r}, which names no file; download it again"
            )
    entries: dict[str, _Entry] = {}
    for shard in sorted(set(weight_map.values())):
        for name, entry in _read_shard(folder, shard):
            if name in entries:
                raise CheckpointError(f"{name}: held by both {entries[name].shard} and {shard}; it must be in one")
            entries[name] = entry
    for name, shard in weight_map.items():
        if name not in entries or entries[name].shard != shard:
            raise CheckpointError(f"{name}: the index places it in {shard}, which does not hold it; download it again")
    for name in entries:
        if name not in weight_map:
            raise CheckpointError(f"{name}: held by {entries[name].shard} but not named by {INDEX}")
    return entries


def _read_shard(folder: Path, shard: str) -> Iterator[tuple[str, _Entry]]:
    path = folder / shard
    if Path(shard).name != shard:
        raise CheckpointError(f"{folder / INDEX}: shard name {shard!r} leaves the checkpoint's folder")
    if not path.is_file():
        raise CheckpointError(f"{path}: this shard is missing; download it again")
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER
        if length >= _MAX_HEADER or 8 + length > size:
            raise CheckpointError(f"{path}: {size:,} bytes are too few for its header; download it again")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise CheckpointError(f"{path}: its header is not JSON ({error}); download it again") from None
    header.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != end:
        what = "truncated" if size < end else "too long"
        raise CheckpointError(f"{path}: {what}: {size:,} bytes there, {end:,} expected; download it again")
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        yield name, _Entry(shard, entry["dtype"], tuple(entry["shape"]), last - first)


def _check_experts(entries: dict[str, _Entry], layers: int, drafts: int, geometry: LayerGeometry) -> None:
    expected = {
        f"{stack}.{layer}.ffn.experts.{expert}.{projection}.{kind}": (projection, kind)
        for stack, count in (("layers", layers), ("mtp", drafts))
        for layer in range(count)
        for expert in range(geometry.experts)
        for projection in PROJECTIONS
        for kind in KINDS
    }
    found = {name for name in entries if _EXPERT.match(name)}
    if missing := sorted(expected.keys() - found):
        raise CheckpointError(
            f"{missing[0]}: missing from the checkpoint ({len(missing)} expert tensors are); download it again"
        )
    if extra := sorted(found - expected.keys()):
        raise CheckpointError(
            f"{extra[0]}: the checkpoint's config.json has no such expert ({len(extra)} expert tensors are extra)"
        )
    for name, (projection, kind) in expected.items():
        _check_expert(name, entries[name], projection, kind, geometry)


def _check_expert(name: str, entry: _Entry, projection: str, kind: str, geometry: LayerGeometry) -> None:
    rows, cols = geometry.width, geometry.hidden
    if projection == "w2":
        rows, cols = cols, rows
    if kind == "weight":
        dtypes, shape = ("I8", "U8"), (rows, cols // 2)
    else:
        dtypes, shape = ("F8_E8M0", "U8"), (rows, cols // SCALE_BLOCK)
    if entry.dtype not in dtypes or entry.shape != shape:
        raise CheckpointError(
            f"{name}: {entry.dtype} {list(entry.shape)} is not an MXFP4 {kind}; expected {dtypes[0]} {list(shape)}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: this file is missing; give a complete checkpoint folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); download it again") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds no JSON object; download it again")
    return document
