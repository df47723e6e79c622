"""``moet sim``: a recorded routing trace, replayed through the policies of the correction pool."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .correction import trace
from .correction.policy import POLICIES
from .correction.trace import Trace, TraceError

if TYPE_CHECKING:  # simulate needs torch, and the other commands of `moet` do not
    from .correction.simulate import Outcome

_SMOOTHED = 200
"""Points of a plotted line at most: neighbouring windows are averaged by their routings."""


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``moet`` command's."""
    parser = commands.add_parser("sim", help="replay a routing trace (VLLM_MOE_W2_TRACE) through the pool's policies")
    parser.add_argument("trace", type=Path, help="trace file")
    parser.add_argument("--slots", type=_slots, help="slots of the pool (default: those that served)")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only this one (default: all)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the hit rate over time")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and print; 0.

    Raises:
        TraceError: the trace cannot be used, or the plot cannot be written.
    """
    from .correction import simulate

    recorded = trace.load(args.trace)
    if not recorded.windows:
        raise TraceError(f"trace {args.trace} holds no window; the server stopped before it routed anything")
    slots = recorded.header.slots if args.slots is None else args.slots
    outcomes = [simulate.replay(recorded, policy, slots) for policy in args.policy or POLICIES]
    print(_heading(recorded, args.trace))
    print(f"{'policy':<8}{'slots':>7}{'hit rate':>10}{'promoted':>10}{'evicted':>9}{'churn':>7}{'moved':>12}")
    for outcome in outcomes:
        print(_row(outcome))
    if args.plot is not None:
        _plot(args.plot, recorded, outcomes)
    return 0


def _heading(recorded: Trace, path: Path) -> str:
    header, totals = recorded.header, recorded.totals
    rate = totals["hits"] / totals["routings"] if totals["routings"] else 0.0
    cut = "" if recorded.whole else ", cut off at the recorder's bound"
    return (
        f"{path}: {len(recorded.windows)} windows over {recorded.windows[-1].seconds:,.1f} s, "
        f"{totals['routings']:,} routings over {len(header.eligible)} layers of {header.experts} experts{cut}\n"
        f"served: {header.policy}, {header.slots} slots, hit rate {rate:.1%}, {totals['promotions']:,} promoted, "
        f"{totals['evictions']:,} evicted"
    )


def _row(outcome: Outcome) -> str:
    totals = outcome.totals
    moved = f"{totals.bytes_read / 2**20:,.1f} MiB"
    return (
        f"{outcome.policy:<8}{outcome.slots:>7}{outcome.hit_rate:>10.1%}{totals.promotions:>10,}"
        f"{totals.evictions:>9,}{outcome.churn:>7.2f}{moved:>12}"
    )


def _plot(path: Path, recorded: Trace, outcomes: list[Outcome]) -> None:
    from . import plot

    weights = [float(window.routings.sum()) for window in recorded.windows]
    series = {outcome.policy: smoothed(outcome, weights) for outcome in outcomes}
    x = plot.axis("seconds", outcomes[0].seconds, low=0.0)
    title = f"Hit rate of {outcomes[0].slots} correction slots"
    try:
        plot.lines(path, title, series, x, plot.axis("share of routings that found FP4", [], 0.0, 1.0))
    except (OSError, ValueError) as error:
        raise TraceError(f"--plot {path} cannot be written: {error}") from None


def smoothed(outcome: Outcome, weights: list[float]) -> list[tuple[float, float]]:
    """(seconds, hit rate) of an outcome, in at most ``_SMOOTHED`` groups of neighbouring windows.

    Args:
        outcome: what to draw.
        weights: routings of each window.
    """
    size = -(-len(weights) // _SMOOTHED)
    points = []
    for first in range(0, len(weights), size):
        group = [number for number in range(first, min(first + size, len(weights))) if weights[number]]
        routings = sum(weights[number] for number in group)
        if routings:
            hits = sum(weights[number] * outcome.hit_rates[number] for number in group)
            points.append((outcome.seconds[group[-1]], hits / routings))
    return points


def _slots(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of slots")
    return int(text)
