"""Recorded routing traces, their replay through the policies, and the chart of it."""

import json
from pathlib import Path

import numpy
import pytest
from correction_support import CPU, LAYERS, full_pack
from generators import TINY
from PIL import Image

from moet_w2 import cli, plot, sim
from moet_w2.correction import simulate, trace
from moet_w2.correction.manager import COUNT_STEPS, Manager
from moet_w2.correction.metrics import Totals
from moet_w2.correction.pool import Pool
from moet_w2.correction.trace import Header, Recorder, TraceError

SHAPE = (LAYERS, TINY.experts)
HEADER = Header(*SHAPE, (0, 2), 3, 49152, "freq", 60.0, 8)


def random_windows(number: int, seed: int = 0) -> list[numpy.ndarray]:
    """Skewed counts whose favourites change in the middle; some windows are empty, excluded layers always."""
    chance = numpy.random.default_rng(seed)
    windows = []
    for index in range(number):
        favour = numpy.roll(1.0 / numpy.arange(1, TINY.experts + 1) ** 2, 0 if index < number // 2 else 2)
        counts = chance.poisson(20 * favour, SHAPE) * (index % 7 != 3)
        counts[1] = 0
        windows.append(counts.astype(numpy.int64))
    return windows


def record(path: Path, windows: list[numpy.ndarray], **options) -> Recorder:
    recorder = Recorder(path, HEADER, **options)
    for index, window in enumerate(windows):
        recorder.add(100.0 + index / 4, window, [(2, 1)] if index == 1 else [], [(0, 3)] if index == 2 else [])
    recorder.write(Totals(routings=5))
    return recorder


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    windows = random_windows(20)
    record(tmp_path / "new" / "t", windows)
    found = trace.load(tmp_path / "new" / "t")
    assert found.header == HEADER and found.whole and found.totals["routings"] == 5
    assert [w.seconds for w in found.windows] == [index / 4 for index in range(20)]
    for window, original in zip(found.windows, windows, strict=True):
        assert (trace.dense(window, SHAPE) == original).all()
    assert found.windows[1].promoted.tolist() == [2 * TINY.experts + 1]
    assert found.windows[2].evicted.tolist() == [3]
    assert sum(len(w.promoted) + len(w.evicted) for w in found.windows) == 2


def test_a_recorder_is_bounded_and_says_so(tmp_path: Path, caplog) -> None:
    recorder = record(tmp_path / "t", random_windows(4_000), most_bytes=10_000)
    found = trace.load(tmp_path / "t")
    assert not found.whole and 0 < len(found.windows) < 4_000
    assert sum(map(len, recorder._parts)) < 10_000 + 70_000  # the bound, and what the compressor still held
    assert caplog.text.count("later windows are left out") == 1


def test_a_trace_can_be_written_and_go_on(tmp_path: Path) -> None:
    windows = random_windows(9)
    recorder = record(tmp_path / "t", windows[:4])
    assert len(trace.load(tmp_path / "t").windows) == 4
    for index, window in enumerate(windows[4:], 4):
        recorder.add(100.0 + index / 4, window, [], [])
    recorder.write(Totals(routings=7))
    found = trace.load(tmp_path / "t")
    assert found.totals["routings"] == 7
    assert all((trace.dense(a, SHAPE) == b).all() for a, b in zip(found.windows, windows, strict=True))


def test_a_trace_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("")
    record(tmp_path / "file" / "t", random_windows(2))
    assert "was not written" in caplog.text


def test_an_old_trace_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    record(tmp_path / "t", random_windows(3))
    before = (tmp_path / "t").read_bytes()
    recorder = Recorder(tmp_path / "t", HEADER)
    recorder.add(0.0, random_windows(1)[0], [], [])
    assert (tmp_path / "t").read_bytes() == before
    recorder.write(Totals())
    assert len(trace.load(tmp_path / "t").windows) == 1 and list(tmp_path.iterdir()) == [tmp_path / "t"]


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda c: b"", "is not a routing trace"),
        (lambda c: b"[1]\n", "is not a routing trace"),
        (lambda c: c.replace(b"trace/1", b"trace/9"), "is not a routing trace of format moet.routing-trace/1"),
        (lambda c: c.replace(b'"slots": 3, ', b""), "is not a routing trace"),
        (lambda c: c[:-9], "is damaged"),
        (lambda c: c.replace(b'"experts": 4', b'"experts": 1'), "names an expert beyond its 3"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, harm, named: str) -> None:
    record(tmp_path / "t", random_windows(5))
    content = (tmp_path / "t").read_bytes()
    assert harm(content) != content
    (tmp_path / "t").write_bytes(harm(content))
    with pytest.raises(TraceError, match=named):
        trace.load(tmp_path / "t")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file.*VLLM_MOE_W2_TRACE"):
        trace.load(tmp_path / "t")


# ---- replay


def served(root: Path, windows: list[numpy.ndarray], policy: str, slots: int) -> Manager:
    """What a manager with a real pack makes of windows, recorded to ``root / "t"``."""
    pack, now = full_pack(root), [0.0]
    pool = Pool(*SHAPE, slots, pack.row_bytes, CPU)
    header = Header(*SHAPE, (0, 2), slots, pack.row_bytes, policy, 2.0, 8)
    recorder = Recorder(root / "t", header)
    eligible = numpy.array([True, False, True])
    manager = Manager(pool, pack, eligible, policy, 2.0, clock=lambda: now[0], recorder=recorder)
    for window in windows:
        now[0] += 0.5
        manager.run_pass(window)
        for _ in range(COUNT_STEPS):
            pool.boundary()
    manager.close()
    return manager


@pytest.mark.parametrize("policy", ["freq", "lru"])
def test_a_replay_with_what_served_is_what_was_served(tmp_path: Path, policy: str) -> None:
    manager = served(tmp_path, random_windows(60), policy, 3)
    recorded = trace.load(tmp_path / "t")
    outcome = simulate.replay(recorded, policy, 3)
    totals = manager.metrics().totals
    assert outcome.totals == totals and totals.evictions > 0
    assert outcome.totals.bytes_read == outcome.totals.promotions * manager.pack.row_bytes
    assert sum(len(window.promoted) for window in recorded.windows) == totals.promotions
    assert sum(len(window.evicted) for window in recorded.windows) == totals.evictions


def test_more_slots_hit_more_and_none_hit_nothing(tmp_path: Path) -> None:
    served(tmp_path, random_windows(300), "freq", 2)
    recorded = trace.load(tmp_path / "t")
    rates = [simulate.replay(recorded, "freq", slots).hit_rate for slots in (0, 1, 2, 4, 8)]
    assert rates == sorted(rates) and rates[0] == 0 and rates[-1] > 0.9
    all_of_them = simulate.replay(recorded, "freq", 8)
    assert all_of_them.churn == 0 and simulate.replay(recorded, "freq", 1).churn > 0
    assert len(all_of_them.hit_rates) == 300 and numpy.isnan(all_of_them.hit_rates[3])


def run_sim(*words: str) -> int:
    return cli.main(["sim", *words])


def test_the_command_prints_a_line_for_each_policy(tmp_path: Path, capsys) -> None:
    manager = served(tmp_path, random_windows(40), "freq", 3)
    assert run_sim(str(tmp_path / "t")) == 0
    out = capsys.readouterr().out
    rate = f"{manager.metrics().hit_rate:.1%}"
    assert "40 windows over 19.5 s" in out and "2 layers of 4 experts" in out
    assert f"served: freq, 3 slots, hit rate {rate}" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines()[-2:]}
    assert lines["freq"][1:3] == ["3", rate] and lines["lru"][1] == "3"
    assert run_sim(str(tmp_path / "t"), "--policy", "lru", "--slots", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["lru", "1"]


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, capsys) -> None:
    path = str(tmp_path / "t")
    assert run_sim(path) == 2 and "cannot be read" in capsys.readouterr().err
    served(tmp_path, [], "freq", 3)
    assert run_sim(path) == 2 and "holds no window" in capsys.readouterr().err
    served(tmp_path, random_windows(2), "freq", 3)
    assert run_sim(path, "--plot", str(tmp_path / "no" / "p.png")) == 2
    error = capsys.readouterr().err
    assert error.startswith("moet: error: --plot ") and error.count("\n") == 1
    with pytest.raises(SystemExit):
        run_sim(path, "--slots", "-1")
    assert "'-1' is not a number of slots" in capsys.readouterr().err


# ---- the chart


def test_the_command_draws_its_lines(tmp_path: Path) -> None:
    served(tmp_path, random_windows(500), "freq", 3)
    assert run_sim(str(tmp_path / "t"), "--plot", str(tmp_path / "p.png")) == 0
    image = Image.open(tmp_path / "p.png")
    assert image.format == "PNG" and image.size == (plot.WIDTH, plot.HEIGHT)
    colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert set(plot._COLORS[:2]) <= colors and not set(plot._COLORS[2:]) & colors


def test_a_line_is_where_its_points_are_and_breaks_where_there_is_none(tmp_path: Path) -> None:
    x, y = plot.axis("x", [0, 4]), plot.axis("y", [], 0.0, 1.0)
    points = [(0.0, 0.5), (1.0, 0.5), (2.0, float("nan")), (3.0, 0.5), (4.0, 0.5)]
    plot.lines(tmp_path / "p.png", "t", {"one": points}, x, y)
    image = Image.open(tmp_path / "p.png").convert("RGB")
    width = plot.WIDTH - plot._LEFT - plot._RIGHT
    middle = (plot._TOP + plot.HEIGHT - plot._BOTTOM) // 2
    drawn = [
        any(image.getpixel((plot._LEFT + int(width * share), middle + dy)) == plot._COLORS[0] for dy in (-1, 0, 1))
        for share in (0.1, 0.2, 0.5, 0.8, 0.9)
    ]
    assert drawn == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 61.5, [0, 20, 40, 60]), (3, 9, [4, 6, 8]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round_numbers(low, high, expected) -> None:
    assert plot.Axis("a", low, high).ticks() == pytest.approx(expected)


def test_an_axis_over_nothing_or_one_value_is_not_empty() -> None:
    assert plot.axis("a", []).ticks() and plot.axis("a", [5.0, float("nan")]).ticks()


def test_smoothing_weighs_windows_by_their_routings() -> None:
    hit_rates = [1.0, 0.0, float("nan")] * 200
    outcome = simulate.Outcome("freq", 1, Totals(), [float(index) for index in range(600)], hit_rates)
    points = sim.smoothed(outcome, [3.0, 1.0, 0.0] * 200)
    assert len(points) == 200 and all(rate == 0.75 for _, rate in points)
    assert points[0][0] == 1.0


def test_the_header_is_plain_json(tmp_path: Path) -> None:
    record(tmp_path / "t", random_windows(3))
    first = (tmp_path / "t").read_bytes().partition(b"\n")[0]
    assert json.loads(first)["policy"] == "freq"
