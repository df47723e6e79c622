"""Options of ``moet plan`` that do not go together, and values that others make impossible."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..errors import ConfigError
from .model import Model
from .options import option
from .settings import Settings

TABLE = ("recipe", "measure", "vram_gib", "cuda_gib", "hbm_gbs", "sm")
"""What ``--cards`` has no use for: its cards have all that themselves."""


def check(args: argparse.Namespace) -> None:
    """Look for options that would change nothing beside others.

    Args:
        args: parsed options.

    Raises:
        ConfigError: there is one.
    """
    given = [name for name, value in vars(args).items() if value is not None and value is not False and name != "run"]
    for name in given:
        if args.compare and name not in ("compare", "json"):
            raise ConfigError(f"{option(name)} has no part in --compare, which takes only --json; leave one out")
        if args.cards and name in TABLE:
            raise ConfigError(f"{option(name)} has no part in --cards, whose cards are given; leave one out")
    if "vram_gib" in given and "cuda_gib" in given:
        raise ConfigError("--vram-gib and --cuda-gib both give the card's memory; leave one out")


def check_values(args: argparse.Namespace, model: Model, settings: Settings, contexts: Sequence[int] = ()) -> None:
    """Look for values that cannot be for this model, served like this.

    Args:
        args: parsed options.
        model: its dimensions.
        settings: how it is served, as options and recipe say.
        contexts: those that are planned for; default: that of the settings.

    Raises:
        ConfigError: there is one; it names what bounds it.
    """
    contexts = contexts or (settings.context,)
    most, least, positions = max(contexts), min(contexts), model.rope_positions
    if most > positions:
        named = "--context" if args.context is not None else f"{args.recipe}: engine.max-model-len"
        raise ConfigError(f"{named} is {most}, beyond the model's max_position_embeddings; give at most {positions}")
    if args.speculative and not model.draft_layers:
        raise ConfigError(f"--speculative is {args.speculative}, but the model has no draft layers; give 0")
    step = args.tokens_per_step
    if step is not None and step > settings.query:
        raise ConfigError(
            f"--tokens-per-step is {step:g}, but a step gives one token and at most {settings.speculative} drafts; "
            f"give at most {settings.query}" + (", or more drafts with --speculative" if model.draft_layers else "")
        )
    if args.correction_hits and not settings.slots(model):
        raise ConfigError(
            f"--correction-hits is {args.correction_hits:g}, but a correction pool of "
            f"{settings.correction_bytes} bytes has no slot; give 0, or a larger pool with --correction-gib"
        )
    if args.decode_context is not None and args.decode_context > least:
        raise ConfigError(
            f"--decode-context is {args.decode_context}, beyond the context; give at most {least}, "
            "or a longer context with --context"
        )
    if args.others and settings.seqs == 1:
        raise ConfigError(f"--others is {args.others:g}, but with one request there are none; give 0, or more --seqs")
