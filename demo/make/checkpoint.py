"""Master weights <-> the official checkpoint: tensors, shards, index."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from demo.make import e8m0, fp8, mxfp4
from demo.make.geometry import EXPERT_WIDTH, EXPERTS
from demo.make.names import Entry, entries, scale_name

SHARDS = 4
INDEX = "model.safetensors.index.json"
_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32}


def _slice(entry: Entry, tensor: torch.Tensor) -> torch.Tensor:
    """The part of a transformers tensor that one official tensor holds; a view."""
    if entry.expert is None:
        return tensor
    matrix = tensor[entry.expert]
    if entry.part == "w1":
        return matrix[:EXPERT_WIDTH]
    if entry.part == "w3":
        return matrix[EXPERT_WIDTH:]
    return matrix


def to_official(masters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Quantise master weights (transformers' names, float32) into the official tensors.

    Raises ValueError for an expert whose zeros nearly all carry one sign: its 2-bit reading would then depend on
    positions that training did not see.
    """
    result: dict[str, torch.Tensor] = {}
    for entry in entries():
        weight = _slice(entry, masters[entry.ours].detach().cpu())
        if entry.storage == "fp4":
            exponents = mxfp4.block_exponents(weight)
            codes = mxfp4.encode(weight, exponents)
            if mxfp4.zeros_of_one_sign(codes):
                raise ValueError(f"{entry.official}: over 95% of its zeros carry one sign; train it further")
            result[entry.official] = mxfp4.pack(codes).contiguous()
            result[scale_name(entry.official)] = e8m0.to_e8m0(exponents)
        elif entry.storage == "fp8":
            exponents = fp8.block_exponents(weight)
            result[entry.official] = fp8.encode(weight, exponents)
            result[scale_name(entry.official)] = e8m0.to_e8m0(exponents)
        else:
            result[entry.official] = weight.to(_DTYPES[entry.storage]).contiguous().clone()
    return result


def from_official(tensors: dict[str, torch.Tensor], two_bit: bool) -> dict[str, torch.Tensor]:
    """Decode official tensors into transformers' float32 weights, the experts as MXFP4 or as 2 bits."""
    result: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[tuple[int | None, str | None], torch.Tensor]] = {}
    for entry in entries():
        stored = tensors[entry.official]
        if entry.storage == "fp4":
            exponents = e8m0.from_e8m0(tensors[scale_name(entry.official)])
            decode = mxfp4.decode_w2 if two_bit else mxfp4.decode_fp4
            stacks.setdefault(entry.ours, {})[entry.expert, entry.part] = decode(mxfp4.unpack(stored), exponents)
        elif entry.storage == "fp8":
            result[entry.ours] = fp8.decode(stored, e8m0.from_e8m0(tensors[scale_name(entry.official)]))
        elif entry.storage == "i32":
            result[entry.ours] = stored.long()
        else:
            result[entry.ours] = stored.float()
    for name, parts in stacks.items():
        experts = range(EXPERTS)
        if name.endswith("down_proj"):
            result[name] = torch.stack([parts[e, "w2"] for e in experts])
        else:
            result[name] = torch.stack([torch.cat((parts[e, "w1"], parts[e, "w3"])) for e in experts])
    return result


def write(directory: Path, tensors: dict[str, torch.Tensor]) -> int:
    """Write shards of about equal size, in file order, and the index; returns the bytes of all tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    total = sum(t.nbytes for t in tensors.values())
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    done = 0
    for name, tensor in tensors.items():
        shards[min(SHARDS - 1, done * SHARDS // total)][name] = tensor
        done += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        (directory / file).chmod(0o644)
        weight_map.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return total


def read(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a sharded checkpoint."""
    weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
    result: dict[str, torch.Tensor] = {}
    for file in sorted(set(weight_map.values())):
        with safe_open(directory / file, framework="pt") as shard:
            result.update({name: shard.get_tensor(name) for name in shard.keys()})
    return result
