"""What the options of ``moet plan`` ask for: a model, a machine, how it is served, and what is assumed."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, MoetError
from ..recipe_sections import Device
from . import cards
from .machine import GIB, Machine, card
from .model import FLASH, Model, from_config
from .placements import DEFAULT, Assumptions, gib
from .settings import Settings


def model_and_settings(args: argparse.Namespace) -> tuple[Model, Settings]:
    """The model of ``--model``, and how it is served; for no more tokens, and no more drafts, than it can.

    Args:
        args: parsed options.

    Raises:
        CheckpointError: config.json cannot be used.
    """
    model, served = from_config(FLASH if args.model is None else config(args.model)), Settings()
    fitting = replace(
        served,
        context=min(served.context, model.rope_positions),
        speculative=served.speculative if model.draft_layers else 0,
    )
    chosen = settings(args, fitting)
    return (model if chosen.speculative else replace(model, draft_layers=0)), chosen


def without_drafts(model: Model, served: Settings, mapped: tuple[int, ...]) -> tuple[Model, Settings, tuple[int, ...]]:
    """A recipe's placement, served without speculation: its draft layers are not loaded then.

    Args:
        model: its dimensions.
        served: how it is served.
        mapped: keys of the layers in host memory.
    """
    targets = model.target_layers
    excluded = None if served.excluded is None else tuple(key for key in served.excluded if key < targets)
    return (
        replace(model, draft_layers=0),
        replace(served, speculative=0, excluded=excluded),
        tuple(key for key in mapped if key < targets),
    )


def config(folder: Path) -> dict[str, Any]:
    """Content of a folder's config.json, which a model can be made from.

    Args:
        folder: the checkpoint's.

    Raises:
        CheckpointError: it cannot be read, or is not what the planner knows.
    """
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; give the folder that holds config.json") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); download it again") from None
    if not isinstance(found, dict) or found.get("model_type") != "deepseek_v4":
        raise CheckpointError(f"{path}: does not describe a deepseek_v4 model; plans are for those only")
    try:
        from_config(found)
    except MoetError as error:
        raise CheckpointError(f"{path}: {str(error).removeprefix('config.json: ')}") from None
    return found


def machine(args: argparse.Namespace) -> tuple[Machine, tuple[str, ...]]:
    """The machine, and how its figures came about where they were measured.

    Args:
        args: parsed options.
    """
    found, notes = card(), ()
    if args.measure:
        from . import measure

        measured = measure.measure()
        found, notes = measured.machine, measured.notes
    changes: dict[str, Any] = {}
    if args.vram_gib is not None:
        changes["cuda_bytes"] = card(args.vram_gib).cuda_bytes
    if args.cuda_gib is not None:
        changes["cuda_bytes"] = int(args.cuda_gib * GIB)
    if args.hbm_gbs is not None:
        changes["hbm_gbs"] = args.hbm_gbs
    if args.sm is not None:
        changes["sm"] = args.sm
    return on_host(replace(found, **changes), args), notes


def on_host(found: Machine, args: argparse.Namespace) -> Machine:
    """A card on the host that the options give.

    Args:
        found: the card, on any host.
        args: parsed options.
    """
    changes: dict[str, Any] = {}
    if args.host_gib is not None:
        changes["host_bytes"] = int(args.host_gib * GIB)
    if args.pcie_gbs is not None:
        changes["link_gbs"] = args.pcie_gbs or None
    return replace(found, **changes)


def made_for(device: Device, found: Machine, args: argparse.Namespace) -> Machine:
    """The machine, with what a recipe says of its card and no option names.

    Args:
        device: the recipe's.
        found: the machine of the options.
        args: parsed options.
    """
    changes: dict[str, Any] = {}
    if device.vram_gib is not None and args.vram_gib is None and args.cuda_gib is None:
        changes["cuda_bytes"] = int(device.vram_gib * GIB)
    if device.capability is not None and args.sm is None:
        changes["sm"] = max(int(each.partition(".")[0]) for each in device.capability)
    return replace(found, **changes)


def rated(found: Machine) -> tuple[Machine, str]:
    """The machine with its card's read rate, and whose that is; where the card is unknown, its rate is an assumption.

    Args:
        found: a machine whose rate nobody gave or measured.
    """
    known = cards.known(found)
    if known is not None:
        note = f"read rate of device memory: {known.name}; --hbm-gbs gives another"
        return replace(found, hbm_gbs=known.machine.hbm_gbs), note
    return found, (
        f"read rate of device memory: assumed, since no known card has {gib(found.cuda_bytes)} and a compute "
        f"capability of {found.sm}; --hbm-gbs gives it"
    )


def table(args: argparse.Namespace, model: Model) -> tuple[list[cards.Card], tuple[int, ...]]:
    """Cards of ``--cards`` on the host that the options give, and contexts that the model can have.

    Args:
        args: parsed options.
        model: its dimensions.
    """
    some = [replace(each, machine=on_host(each.machine, args)) for each in cards.CARDS]
    if args.context is not None:
        return some, (args.context,)
    fitting = tuple(context for context in cards.CONTEXTS if context <= model.rope_positions)
    return some, fitting or (model.rope_positions,)


def settings(args: argparse.Namespace, base: Settings) -> Settings:
    """How the model is served.

    Args:
        args: parsed options.
        base: for what they do not name.
    """
    names = ("context", "utilization", "seqs", "batched", "speculative")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.correction_gib is not None:
        changes["correction_bytes"] = int(args.correction_gib * GIB)
    return replace(base, **changes)


def assumptions(args: argparse.Namespace, context: int) -> Assumptions:
    """What is assumed.

    Args:
        args: parsed options.
        context: the shortest one that is planned for, which no request that decodes has more than behind it.
    """
    names = ("tokens_per_step", "correction_hits", "others")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.runtime_gib is not None:
        changes["runtime_bytes"] = int(args.runtime_gib * GIB)
    behind = min(DEFAULT.decode_context, context) if args.decode_context is None else args.decode_context
    return replace(DEFAULT, decode_context=behind, **changes)
