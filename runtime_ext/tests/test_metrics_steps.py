"""Prompt tokens counted at each step, and the lines of a long prefill."""

from metrics_support import Clock, request, step

from moet_w2.metrics.prefill_log import PrefillLog
from moet_w2.metrics.steps import Open, Steps


def counting(clock: Clock | None = None) -> Steps:
    steps = Steps(clock or Clock())
    steps.active = True
    return steps


def test_warm_up_counts_for_nothing() -> None:
    steps = Steps()
    steps.note(step({"a": 4}, new=[request("a", 9)]))
    assert (steps.steps, steps.computed, steps.open) == (0, 0, Open())


def test_a_long_prompt_moves_with_every_step() -> None:
    steps, seen = counting(), []
    steps.note(step({"a": 4}, new=[request("a", 10, cached=1)]))
    seen.append((steps.computed, steps.open.left))
    for tokens in (4, 1, 1, 1):  # the last two are decode
        steps.note(step({"a": tokens}))
        seen.append((steps.computed, steps.open.left))
    assert seen == [(4, 5), (8, 1), (9, 0), (9, 0), (9, 0)]
    assert (steps.cached, steps.recomputed, steps.steps) == (1, 0, 5)
    assert steps.open.requests == 0 and [prompt.total for prompt in steps.finished] == [10]


def test_the_part_that_speculates_is_no_prompt() -> None:
    """A prompt's last part and its first drafts may be scheduled together; only the prompt's tokens count."""
    steps = counting()
    steps.note(step({"a": 6}, new=[request("a", 4)]))
    assert steps.computed == 4 and steps.open.requests == 0


def test_requests_beside_each_other_add_up() -> None:
    clock = Clock()
    steps = counting(clock)
    steps.note(step({"a": 4}, new=[request("a", 10)]))
    clock.now += 3
    steps.note(step({"a": 2, "b": 2}, new=[request("b", 8, cached=4)]))
    assert steps.open == Open(requests=2, total=18, cached=4, done=8, since=100.0)
    steps.note(step({"b": 2}))
    assert steps.open == Open(requests=1, total=10, cached=0, done=6, since=100.0)
    assert (steps.computed, steps.cached) == (10, 4)


def test_a_request_that_is_aborted_is_open_no_more() -> None:
    steps = counting()
    steps.note(step({"a": 4}, new=[request("a", 10)]))
    steps.note(step({}, finished=["a"]))
    assert steps.open == Open() and steps.computed == 4
    assert steps.steps == 1  # a step without tokens is none
    assert not steps.finished


def test_a_request_that_starts_over_is_computed_again_and_cached_once() -> None:
    steps = counting()
    steps.note(step({"a": 4}, new=[request("a", 6, cached=2)]))
    steps.note(step({"b": 4}, new=[request("b", 4)], preempted=["a"]))
    assert steps.open.requests == 0
    # It comes back with its own output as a part of what it prefills, and hits its own blocks.
    steps.note(step({"a": 5}, new=[request("a", 8, cached=3)]))
    assert (steps.computed, steps.recomputed, steps.cached) == (4 + 4 + 5, 5, 2)
    steps.note(step({"a": 1}, finished=["b"]))
    steps.note(step({}, finished=["a"]))
    steps.note(step({"a": 4}, new=[request("a", 4)]))  # another request of the same name
    assert steps.recomputed == 5


def test_the_time_of_the_last_step_is_kept(monkeypatch) -> None:
    from moet_w2.metrics import steps as module

    monkeypatch.setattr(module.time, "time", lambda: 1234.5)
    steps = counting()
    assert steps.last_unix == 0.0
    steps.note(step({}))
    assert steps.last_unix == 0.0
    steps.note(step({"a": 1}, new=[request("a", 1)]))
    assert steps.last_unix == 1234.5


# ---- the log


def prefill(clock: Clock, seconds_a_step: float, total: int = 250_000, part: int = 2048, cached: int = 0) -> list[str]:
    """Lines told while a prompt is computed, the reporter looking every second."""
    lines: list[str] = []
    steps, log = counting(clock), PrefillLog(lines.append, clock)
    for _ in range(30):  # idle before
        clock.now += 1
        log.look(steps)
    new = [request("a", total, cached)]
    looked = clock.now
    while new or steps.open.requests:
        steps.note(step({"a": part}, new=new))
        new = []
        until = clock.now + seconds_a_step
        while looked + 1 <= until:
            looked = clock.now = looked + 1
            log.look(steps)
        clock.now = until
    log.look(steps)
    return lines


def test_a_long_prefill_is_told_of_every_ten_seconds_at_the_rate_that_it_has() -> None:
    lines = prefill(Clock(), seconds_a_step=0.66)
    assert len(lines) == 9  # 122 steps of 0.66 s: eight times ten seconds, and the end
    assert lines[0] == "prefill: 32,768 of 250,000 tokens, 3,277 tok/s, 0 cached"
    rates = [float(line.split(", ")[1].split()[0].replace(",", "")) for line in lines[:-1]]
    assert all(2048 / 0.66 * 0.9 < rate < 2048 / 0.66 * 1.1 for rate in rates)
    assert lines[-1] == "prefill: all of 250,000 tokens handed over after 80.5 s, 3,103 tok/s, 0 cached"


def test_cached_tokens_are_told_apart_and_raise_no_rate() -> None:
    lines = prefill(Clock(), seconds_a_step=1.0, total=60_000, cached=20_480)
    assert lines[0] == "prefill: 40,960 of 60,000 tokens, 2,048 tok/s, 20,480 cached"
    assert lines[-1].endswith("20,480 cached") and "after 19.0 s, 2,048 tok/s" in lines[-1]


def test_a_short_prefill_says_nothing() -> None:
    assert prefill(Clock(), seconds_a_step=0.66, total=16_384) == []


def test_several_prompts_are_told_in_one_line() -> None:
    clock, lines = Clock(), []
    steps, log = counting(clock), PrefillLog(lines.append, clock)
    steps.note(step({"a": 100, "b": 50}, new=[request("a", 300), request("b", 200, cached=10)]))
    clock.now += 12
    log.look(steps)
    assert lines == ["prefill: 160 of 500 tokens in 2 requests, 12 tok/s, 10 cached"]


def test_a_prefill_after_another_has_its_own_clock() -> None:
    clock, lines = Clock(), []
    steps, log = counting(clock), PrefillLog(lines.append, clock)
    for name in ("a", "b", "c"):  # six seconds each, idle in between for less than a look
        steps.note(step({name: 10}, new=[request(name, 20)]))
        clock.now += 6
        log.look(steps)
        steps.note(step({name: 10}))
        clock.now += 0.1
    assert lines == []
