"""Words on the servers that were measured from start to stop, and on whole steps, made from their result files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moet_w2.recipe import Recipe

DECODE = {"one": "decode_1x1024", "four": "decode_4x1024"}


def rate(result: dict[str, Any], requests: str) -> float:
    """Tokens per second that the client saw of ``one`` or ``four`` requests."""
    return result["phases"][DECODE[requests]]["client"]["decode_tokens_per_s"]


def step_ms(result: dict[str, Any]) -> float:
    """Milliseconds of a decode step of one request, from the client's rate and the drafts that were accepted."""
    return 1000 * result["phases"][DECODE["one"]]["speculation"]["tokens_per_step"] / rate(result, "one")


def price(results: dict[str, dict[str, Any]]) -> list[str]:
    """What mapping costs, by the servers' names: share of the decode rate with every layer in VRAM."""
    resident = results["resident"]
    lost = {
        (name, requests): 100 * (1 - rate(results[name], requests) / rate(resident, requests))
        for name in ("300k", "512k")
        for requests in DECODE
    }
    return [
        f"three mapped draft layers cost {lost['300k', 'one']:.0f}% of the decode rate of one request and "
        f"{lost['300k', 'four']:.0f}% of that of four, with target layer 42 as well {lost['512k', 'one']:.0f}% and "
        f"{lost['512k', 'four']:.0f}%"
    ]


def longest_stop(results: Iterable[dict[str, Any]]) -> float:
    """Seconds that a stop while answering took at most."""
    return max(result["stop"]["gpu_memory_free_seconds"] for result in results)


def stops(results: dict[str, dict[str, Any]]) -> str:
    """How long a stop while answering took at most."""
    seconds = longest_stop(results.values())
    return f"SIGTERM in the middle of an answer left no process and no memory held on the GPU after {seconds:.1f} s"


def starts(results: dict[str, dict[str, Any]]) -> str:
    """Seconds until ready, of both profiles."""
    first, second = (results[name]["ready_seconds"] for name in ("300k", "512k"))
    return f"was ready after {first:.0f} s in the 300k profile and {second:.0f} s in the 512k profile"


def unanswered(results: dict[str, dict[str, Any]]) -> str:
    """What happened to the longest prompt that the 512k profile was asked for."""
    result = results["512k"]
    longest = f"{result['exercised']['longest_prompt_tokens']:,}"
    (asked,) = (name for name, phase in result["phases"].items() if "error" in phase)
    computed = result["phases"][asked]["counters"]["moet_prefill_computed_tokens_total"]
    return (
        f"answered a prompt of {longest} tokens, then ran out of memory {computed:,.0f} tokens into a prompt of "
        f"{int(asked.removeprefix('prefill_')):,}"
    )


def held(profiles: dict[str, Recipe]) -> str:
    """The memory that the profiles are made for."""
    return f"inside {profiles['512k'].device.vram_gib:g} GiB"


def second_run(result: dict[str, Any]) -> str:
    """Whole steps beside stock, measured once more."""
    return f"in a second run, on another host, {_pair(result['ours_over_stock']['ours-0-mapped'], 2)}"


def peers(result: dict[str, Any]) -> list[str]:
    """Whole steps of the run that has offloaded and mapped sides."""
    offloaded = result["ours_over_offloaded"]["ours-4-mapped"]
    return [
        second_run(result),
        f"4 layers mapped: {_pair(offloaded, 1)} times stock's with the experts of 4 layers offloaded",
    ]


def speculation(result: dict[str, Any]) -> list[str]:
    """Greedy decoding with DSpark against without, beside the engine without it against itself, token by token."""
    found, control = result["dspark_against_plain"], result["plain_alone_against_together"]
    words, own = (result["traced"][name]["words"] for name in ("dspark", "together"))
    random, second, follows = (result["planted"][kind] for kind in ("random", "second", "follows"))
    odd = result["not_explained_by_shapes"]["dspark"]
    behind = sorted(min(one["behind"].values()) for one in odd)
    own_behind = result["traced"]["together"]["nats_behind_in_the_best_shape"]["largest"]
    differing = {one["prompt"] for one in found["differences"]}
    return [
        f"Drafting, with {result['layers']} layers and made-up weights",
        f"of {found['prompts']} prompts {found['equal']} give the same {result['tokens']} tokens with DSpark as "
        f"without; without it, of {control['prompts']} asked for one at a time and four at a time, {control['equal']} "
        "do",
        f"Of the {_tokens(words):,} tokens of DSpark's answers {words['first']:,} are what the engine without it holds "
        f"for the likeliest when it reads them; of {_tokens(own):,} of its own {own['first']:,} are",
        f"Of DSpark's other {_tokens(words) - words['first']}, {words['order']} lead in another batch shape of that "
        f"engine, {words['spread']} is behind by no more than shapes differ at that place, {words['noise']} by no more "
        f"than the bound, which is twice the noise there, and {words['wrong'] or 'none'} by more",
        f"{random['found']} of {random['planted']} random ones were called wrong, {second['found']} of "
        f"{second['planted']} second choices, and {follows['found']} of {follows['planted']} that the draft's Markov "
        f"head would propose, of which {follows['words']['first']} others were the likeliest",
        f"batch shapes explain all but {len(odd)} tokens. Those are behind by {behind[0]:.2f} and {behind[1]:.2f} nats "
        f"in their best shape, the engine's own by {own_behind:.2f} at most; of the {len(odd)}, the "
        f"engine without DSpark took {sum(one['answer'] not in differing for one in odd)} itself",
    ]


def _tokens(words: dict[str, int]) -> int:
    return sum(words.values())


def _pair(rates: dict[str, dict[str, float]], digits: int) -> str:
    one, four = (rates[count]["decode_tokens_per_s"] for count in ("1", "4"))
    return f"{one:.{digits}f} and {four:.{digits}f}"
