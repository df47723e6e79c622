"""``moet plan``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .. import exit_status
from ..errors import ConfigError, RecipeError
from . import cards, choose, combinations, options, predict, report, reported, wish
from .placements import host_fault, with_room


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
    serving.add_argument(
        "--context", type=options.TOKENS, metavar="N", help="max-model-len (300000, or the model's most)"
    )
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
        help="a table instead of one plan: cards on hosts with 128 GiB or --host-gib, and contexts or --context",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; 0, or 1 where nothing fits or the longest prompt runs out of memory.

    Raises:
        MoetError: options, the recipe or config.json cannot be used.
    """
    options.check(args)
    combinations.check(args)
    if args.compare:
        rows = reported.compare()
        _print(json.dumps(rows, indent=2) if args.json else report.comparison(rows))
        return 0
    if args.cards:
        return _cards(args)
    if args.recipe is not None:
        return _recipe(args)
    model, settings = wish.model_and_settings(args)
    combinations.check_values(args, model, settings)
    given = wish.assumptions(args, settings.context)
    machine, notes = wish.machine(args)
    if args.utilization is None:
        settings = with_room(model, machine, settings, given)
    plan = choose.plan(model, machine, settings, given)
    if args.json:
        _print(json.dumps(report.document(plan, machine, given) | {"measured": notes}, indent=2))
    else:
        _print("\n".join([*notes, report.text(plan, machine)]))
    return 0 if plan.chosen and plan.chosen.memory.spare >= 0 else 1


def _cards(args: argparse.Namespace) -> int:
    model, settings = wish.model_and_settings(args)
    some, contexts = wish.table(args, model)
    combinations.check_values(args, model, settings, contexts)
    given = wish.assumptions(args, min(contexts))
    found = list(cards.propose(model, settings, some, contexts, given, keep=args.utilization is not None))
    _print(json.dumps(report.proposals_document(found), indent=2) if args.json else report.proposals(found))
    return 0


def _recipe(args: argparse.Namespace) -> int:
    from .. import recipe as recipes

    loaded = recipes.load(args.recipe)
    if loaded.device is not None and loaded.device.kind != "cuda":
        raise RecipeError(f"{args.recipe}: made for a {loaded.device.kind}; the planner knows CUDA cards only")
    folder = args.model or loaded.model_path
    config = wish.config(folder) if args.model or (folder / "config.json").is_file() else None
    model, settings, mapped = predict.of_recipe(loaded, config)
    settings = wish.settings(args, settings)
    combinations.check_values(args, model, settings)
    if args.speculative == 0:
        model, settings, mapped = wish.without_drafts(model, settings, mapped)
    given = wish.assumptions(args, settings.context)
    machine, notes = wish.machine(args)
    if loaded.device is not None and not args.measure:
        machine = wish.made_for(loaded.device, machine, args)
    if args.hbm_gbs is None and not args.measure:
        machine, note = wish.rated(machine)
        notes = (*notes, note)
    found = predict.predict(model, machine, settings, mapped, (), given=given)
    fault = host_fault(found.memory, machine, given)
    fits = found.memory.fits and fault is None
    if fits:
        counts, prompts = sorted({1, settings.seqs}), (settings.context,)
        found = predict.predict(model, machine, settings, mapped, counts, prompts=prompts, given=given)
    remedies = choose.instead(model, machine, settings, found.memory, given)
    if args.json:
        document = report.prediction_document(found, machine, mapped, given, fault, remedies)
        _print(json.dumps(document | {"notes": notes}, indent=2))
    else:
        text = report.prediction_text(found, machine, mapped, settings.context, fault, remedies)
        _print("\n".join([*notes, text]))
    return 0 if fits and found.memory.spare >= 0 else 1


def _print(text: str) -> None:
    """Print, at once, so that what cannot be written is known here.

    Raises:
        ConfigError: it cannot, as on a full disk.
        BrokenPipeError: who reads has enough.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        exit_status.drop_output()
        raise ConfigError(f"the plan cannot be written: {error.strerror or error}; write it to another place") from None
