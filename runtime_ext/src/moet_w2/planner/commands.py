"""``moet plan``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, RecipeError
from . import cards, choose, options, predict, report, reported
from .machine import GIB, Machine, card
from .model import FLASH, Model, from_config
from .placements import DEFAULT, Assumptions, host_fault, with_room
from .settings import Settings


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``moet`` command's."""
    parser = commands.add_parser(
        "plan",
        help="what fits on a card, which layers to map, and how fast it will be",
        description="Choose the layers to map for a card and a context, and predict memory, KV tokens and rates. "
        "Without options: DeepSeek-V4-Flash on a 96 GB card at 300,000 tokens.",
    )
    source = parser.add_argument_group("model")
    source.add_argument("--model", type=Path, metavar="FOLDER", help="folder that holds config.json")
    source.add_argument("--recipe", type=Path, metavar="FILE", help="predict the placement of this recipe")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--measure", action="store_true", help="take sizes and read rates from this machine")
    machine.add_argument(
        "--vram-gib", type=options.GIBS, metavar="N", help="the card as sold (96); CUDA sees 98.9%% of it"
    )
    machine.add_argument("--cuda-gib", type=options.GIBS, metavar="N", help="the card's total as CUDA reports it")
    machine.add_argument("--host-gib", type=options.GIBS, metavar="N", help="host memory (128)")
    machine.add_argument("--hbm-gbs", type=options.RATE, metavar="N", help="read rate of device memory, GB/s (1790)")
    machine.add_argument(
        "--pcie-gbs", type=options.LINK, metavar="N", help="read rate of mapped memory (51); 0: no link"
    )
    machine.add_argument("--sm", type=options.MAJOR, metavar="N", help="major compute capability (12)")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--context", type=options.TOKENS, metavar="N", help="max-model-len (300000)")
    serving.add_argument(
        "--utilization",
        type=options.UTILIZATION,
        metavar="X",
        help="gpu-memory-utilization (0.974, or less where the longest prompt needs it)",
    )
    serving.add_argument("--seqs", type=options.SEQS, metavar="N", help="max-num-seqs (4)")
    serving.add_argument("--batched", type=options.TOKENS, metavar="N", help="max-num-batched-tokens (2048)")
    serving.add_argument("--speculative", type=options.DRAFTS, metavar="N", help="draft tokens, 0 for none (4)")
    serving.add_argument("--correction-gib", type=options.PARTS, metavar="N", help="FP4 correction pool (6)")
    taken = parser.add_argument_group("assumptions")
    taken.add_argument("--tokens-per-step", type=options.STEP, metavar="X", help="1 + accepted draft tokens (2.65)")
    taken.add_argument("--correction-hits", type=options.SHARE, metavar="X", help="share of routings that find FP4")
    taken.add_argument(
        "--decode-context", type=options.HELD, metavar="N", help="tokens behind a request that decodes (2048)"
    )
    taken.add_argument(
        "--others", type=options.SHARE, metavar="X", help="of the context, held by the other requests (0.45)"
    )
    taken.add_argument(
        "--runtime-gib", type=options.PARTS, metavar="X", help="libraries, graphs and step peak (computed)"
    )
    parser.add_argument("--compare", action="store_true", help="hold this model against reported figures")
    parser.add_argument(
        "--cards",
        action="store_true",
        help="a table instead of one plan: cards on hosts with 128 GiB, and contexts",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; 0, or 1 where nothing fits or the longest prompt runs out of memory.

    Raises:
        MoetError: an option, the recipe or config.json cannot be used.
    """
    options.check(args)
    if args.compare:
        rows = reported.compare()
        print(json.dumps(rows, indent=2) if args.json else report.comparison(rows))
        return 0
    given = _assumptions(args)
    if args.cards:
        keep = args.utilization is not None
        found = list(cards.propose(_model(args), _settings(args, Settings()), given=given, keep=keep))
        print(json.dumps(report.proposals_document(found), indent=2) if args.json else report.proposals(found))
        return 0
    machine, notes = _machine(args)
    for note in () if args.json else notes:
        print(note)
    if args.recipe is not None:
        return _recipe(args, machine, given)
    model, settings = _model(args), _settings(args, Settings())
    if not settings.speculative:
        model = replace(model, draft_layers=0)
    if args.utilization is None:
        settings = with_room(model, machine, settings, given)
    plan = choose.plan(model, machine, settings, given)
    if args.json:
        print(json.dumps(report.document(plan, machine, given) | {"measured": notes}, indent=2))
    else:
        print(report.text(plan, machine))
    return 0 if plan.chosen and plan.chosen.memory.spare >= 0 else 1


def _recipe(args: argparse.Namespace, machine: Machine, given: Assumptions) -> int:
    from .. import recipe as recipes

    loaded = recipes.load(args.recipe)
    if loaded.device is not None and loaded.device.kind != "cuda":
        raise RecipeError(f"{args.recipe}: made for a {loaded.device.kind}; the planner knows CUDA cards only")
    folder = args.model or loaded.model_path
    config = _config(folder) if args.model or (folder / "config.json").is_file() else None
    model, settings, mapped = predict.of_recipe(loaded, config)
    settings = _settings(args, settings)
    if loaded.device is not None and not args.measure:
        machine = _made_for(loaded.device, machine, args)
    found = predict.predict(model, machine, settings, mapped, (), given=given)
    fault = host_fault(found.memory, machine, given)
    fits = found.memory.fits and fault is None
    if fits:
        counts, prompts = sorted({1, settings.seqs}), (settings.context,)
        found = predict.predict(model, machine, settings, mapped, counts, prompts=prompts, given=given)
    remedies = choose.instead(model, machine, settings, found.memory, given)
    if args.json:
        print(json.dumps(report.prediction_document(found, machine, mapped, given, fault, remedies), indent=2))
    else:
        print(report.prediction_text(found, machine, mapped, settings.context, fault, remedies))
    return 0 if fits and found.memory.spare >= 0 else 1


def _made_for(device: Any, machine: Machine, args: argparse.Namespace) -> Machine:
    """The machine, with what the recipe says of its card and no option names."""
    changes: dict[str, Any] = {}
    if device.vram_gib is not None and args.vram_gib is None and args.cuda_gib is None:
        changes["cuda_bytes"] = int(device.vram_gib * GIB)
    if device.capability is not None and args.sm is None:
        changes["sm"] = max(int(each.partition(".")[0]) for each in device.capability)
    return replace(machine, **changes)


def _model(args: argparse.Namespace) -> Model:
    return from_config(FLASH if args.model is None else _config(args.model))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; give the folder that holds config.json") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); download it again") from None
    if not isinstance(found, dict) or found.get("model_type") != "deepseek_v4":
        raise CheckpointError(f"{path}: does not describe a deepseek_v4 model; plans are for those only")
    return found


def _machine(args: argparse.Namespace) -> tuple[Machine, tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    machine = card()
    if args.measure:
        from . import measure

        measured = measure.measure()
        machine, notes = measured.machine, measured.notes
    changes: dict[str, Any] = {}
    if args.vram_gib is not None:
        changes["cuda_bytes"] = card(args.vram_gib).cuda_bytes
    if args.cuda_gib is not None:
        changes["cuda_bytes"] = int(args.cuda_gib * GIB)
    if args.host_gib is not None:
        changes["host_bytes"] = int(args.host_gib * GIB)
    if args.hbm_gbs is not None:
        changes["hbm_gbs"] = args.hbm_gbs
    if args.pcie_gbs is not None:
        changes["link_gbs"] = args.pcie_gbs or None
    if args.sm is not None:
        changes["sm"] = args.sm
    return replace(machine, **changes), notes


def _settings(args: argparse.Namespace, base: Settings) -> Settings:
    names = ("context", "utilization", "seqs", "batched", "speculative")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.correction_gib is not None:
        changes["correction_bytes"] = int(args.correction_gib * GIB)
    return replace(base, **changes)


def _assumptions(args: argparse.Namespace) -> Assumptions:
    names = ("tokens_per_step", "correction_hits", "decode_context", "others")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.runtime_gib is not None:
        changes["runtime_bytes"] = int(args.runtime_gib * GIB)
    return replace(DEFAULT, **changes)
