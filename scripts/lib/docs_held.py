"""Words on the servers in bench/results/held: they say what fits and what it takes, beside the tables of rates."""

from __future__ import annotations

from typing import Any

from docs_serving import longest_stop, rate, step_ms

LENGTHS = {"300k": "prefill_250000", "512k": "prefill_520000"}


def said(results: dict[str, dict[str, Any]]) -> list[str]:
    """What both servers did, by the servers' names, and what the planner of that commit had said."""
    one, other = (results[name] for name in LENGTHS)
    first, second = (result["prediction"] for result in (one, other))
    return [
        f"of whose memory a second process held all but {other['held']['to_gib']:g} GiB",
        f"Their KV caches hold {one['reported']['kv_cache_tokens']:,} and {other['reported']['kv_cache_tokens']:,} "
        f"tokens; the planner had said {first['kv_tokens']:,} and {second['kv_tokens']:,}",
        f"One request decoded at {rate(one, 'one'):.1f} and {rate(other, 'one'):.1f} tokens/s; it had said "
        f"{first['decode_tokens_per_s']['1']:.1f} and {second['decode_tokens_per_s']['1']:.1f}",
        f"Prompts of {_tokens('300k')} and {_tokens('512k')} tokens were answered after {_seconds(one, '300k'):.1f} s "
        f"and {_seconds(other, '512k'):.1f} s; it had said {_predicted(one, '300k'):.1f} s and "
        f"{_predicted(other, '512k'):.1f} s",
        f"got {_tokens_a_step(one):.1f} tokens a step, not {_tokens_a_step(results['300k of the table']):.1f}",
    ]


def beside(results: dict[str, dict[str, Any]]) -> list[str]:
    """What else was on the card in the second of these runs, and what the servers held of it when they were done."""
    own = results["300k"]["own_gpu_memory_mib"][LENGTHS["300k"]]["most"] / 1024
    other = _other_engine(results)
    after = results["512k"]["own_gpu_memory_mib"][LENGTHS["512k"]]["now"] / 1024 + other
    return [
        f"with {other:.1f} GiB more free than there are on the card it is made for, but took none of them: it held "
        f"{after:.1f} GiB when the prompt was over",
        f"The 300k server held {own:.1f} GiB at most",
    ]


def compiled(results: dict[str, dict[str, Any]]) -> str:
    """What the compilation of a shape that was not seen before costs, from a repeated prompt's remainder."""
    seen = {name: _first(results[name]["phases"]["repeated_32768"]) for name in LENGTHS}
    return (
        f"the rest of a repeated prompt took {seen['512k']:.1f} s in the first server on that host and "
        f"{seen['300k']:.1f} s in the next"
    )


def kept_up(results: dict[str, dict[str, Any]]) -> str:
    """How busy the GPU was with the same prompt on two days."""
    now, then = (
        results[name]["phases"][LENGTHS["300k"]]["gpu"]["power_watts"]["mean"] for name in ("300k", "300k of the table")
    )
    return f"at {now:.0f} W on average, not {then:.0f} W"


def stops(results: dict[str, dict[str, Any]]) -> str:
    """How long a stop while answering took at most."""
    return f"SIGTERM took up to {longest_stop(results[name] for name in LENGTHS):.1f} s"


def once_more(results: dict[str, dict[str, Any]]) -> list[str]:
    """What three mapped draft layers make of a step, of two servers on one host within minutes.

    Of one request: four end one after the other, and their last steps hold fewer.
    """
    resident, mapped = (results[name] for name in ("resident", "300k"))
    first, second = step_ms(resident), step_ms(mapped)
    return [
        f"A step of one request took {first:.1f} ms with every layer in VRAM and {second:.1f} ms with the three draft "
        f"layers mapped, {100 * (second / first - 1):.0f}% more",
        f"got {_tokens_a_step(resident):.1f} and {_tokens_a_step(mapped):.1f} tokens a step",
    ]


def launches(results: dict[str, dict[str, Any]]) -> list[str]:
    """How busy the GPU was with a prompt of 32,768 tokens, how long that took, and what the planner had said."""
    resident, mapped = (results[name] for name in ("resident", "300k"))
    phases = [result["phases"]["prefill_32768"] for result in (resident, mapped)]
    busy, seconds = ([phase["gpu"]["busy_percent"]["mean"] for phase in phases], [_first(phase) for phase in phases])
    said = [result["prediction"]["prefill_seconds"]["32768"] for result in (resident, mapped)]
    short = [1000 * _first(result["phases"]["decode_1x1024"])[0] for result in (resident, mapped)]
    reached = mapped["phases"]["prefill_250000"]["counters"]["moet_prefill_computed_tokens_total"]
    return [
        f"a prompt of 32,768 tokens the GPU was busy {busy[0]:.0f}% and {busy[1]:.0f}% of the time",
        f"took {seconds[0]:.1f} and {seconds[1]:.1f} s where the planner had said {said[0]:.1f} and {said[1]:.1f}",
        f"The first token after 512 tokens came after {short[0]:.0f} and {short[1]:.0f} ms",
        f"repeated prompt took {_first(resident['phases']['repeated_32768']):.1f} s in the first of these servers",
        f"had computed {reached:,.0f} of 250,000 tokens",
    ]


def _first(phase: dict[str, Any]) -> Any:
    return phase["client"]["first_token_seconds"]


def _other_engine(results: dict[str, dict[str, Any]]) -> float:
    """GiB: what was used before the 512k server beyond what was held, less what holding alone takes."""
    mib = {name: results[name]["gpu_memory_mib"]["before"] - results[name]["held"]["held_mib"] for name in LENGTHS}
    return (mib["512k"] - mib["300k"]) / 1024


def _tokens(name: str) -> str:
    return f"{int(LENGTHS[name].removeprefix('prefill_')):,}"


def _seconds(result: dict[str, Any], name: str) -> float:
    return _first(result["phases"][LENGTHS[name]])


def _predicted(result: dict[str, Any], name: str) -> float:
    return result["prediction"]["prefill_seconds"][LENGTHS[name].removeprefix("prefill_")]


def _tokens_a_step(result: dict[str, Any]) -> float:
    return result["phases"]["decode_1x1024"]["speculation"]["tokens_per_step"]
