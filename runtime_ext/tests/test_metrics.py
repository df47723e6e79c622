"""From a worker's snapshot to a scrape: files, their age, who is alive, names by Prometheus' rules."""

import inspect
import json
import logging
import multiprocessing
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from moet_w2.metrics import collector, folder, snapshot, table
from moet_w2.metrics.collector import Collector
from moet_w2.metrics.reporter import Reporter
from moet_w2.metrics.snapshot import Snapshot
from moet_w2.metrics.table import METRICS, OF_SNAPSHOT, Kind

INFO = {"profile": "mine", "device": "test", "kernels": "torch reference", "policy": "freq"}


def look(rank: int = 0, size: int = 1, pid: int | None = None, age: float = 0.0, **values) -> Snapshot:
    """A snapshot of a process, by default this one."""
    pid = pid or os.getpid()
    ticks = snapshot.process_ticks(pid) or 0
    return Snapshot(rank, size, pid, ticks, time.time() - age, INFO, values)


def scrape(place: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values in the order of their labels' names -> value, as Prometheus parses it."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(place))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families:
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


# ---- the table


def test_names_follow_the_rules_of_prometheus() -> None:
    """https://prometheus.io/docs/practices/naming/: a prefix, base units, _total for counters alone."""
    for metric in METRICS:
        assert re.fullmatch(r"moet_[a-z0-9]+(_[a-z0-9]+)*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not re.search(r"_(ms|us|milliseconds|minutes|kb|mb|gb|mib|gib|percent|ratio_percent)(_|$)", metric.name)
        assert metric.help.endswith(".") and "\n" not in metric.help, metric.name
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_what_is_an_estimate_says_so() -> None:
    for metric in METRICS:
        assert ("estimated" in metric.name) == metric.help.startswith("Estimate:"), metric.name


# ---- a scrape


def test_a_scrape_shows_every_value_of_every_rank(tmp_path: Path) -> None:
    one = {m.name: {"x": 2.0, "y": 3.0} if m.label else 1.0 for m in OF_SNAPSHOT}
    look(0, 2, **one).write(tmp_path)
    look(1, 2, **{"moet_steps_total": 7}).write(tmp_path)
    found = scrape(tmp_path)
    assert found["moet_workers_expected"] == {(): 2.0}
    assert found["moet_worker_up"] == {("0",): 1.0, ("1",): 1.0}
    assert found["moet_worker_info"]["test", "torch reference", "freq", "mine", "0"] == 1.0
    assert found["moet_steps_total"] == {("0",): 1.0, ("1",): 7.0}
    assert found["moet_w2_bytes"] == {("x", "0"): 2.0, ("y", "0"): 3.0}
    for metric in OF_SNAPSHOT:
        assert found[metric.name], metric.name
    assert all(0 <= age < 5 for age in found["moet_snapshot_age_seconds"].values())


def test_types_and_help_texts_are_the_tables(tmp_path: Path) -> None:
    look(**{metric.name: {"x": 1} if metric.label else 1 for metric in OF_SNAPSHOT}).write(tmp_path)
    registry = CollectorRegistry()
    registry.register(Collector(tmp_path))
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (str(metric.kind), metric.help)


def test_nothing_reported_is_not_taken_for_a_worker(tmp_path: Path) -> None:
    found = scrape(tmp_path / "never made")
    assert found == {"moet_workers_expected": {(): 0.0}}


def test_a_rank_that_never_reported_is_down(tmp_path: Path) -> None:
    look(1, 2).write(tmp_path)
    found = scrape(tmp_path)
    assert found["moet_worker_up"] == {("0",): 0.0, ("1",): 1.0}
    assert set(found["moet_snapshot_age_seconds"]) == {("1",)}


def test_a_worker_that_hangs_is_down_and_shows_since_when(tmp_path: Path) -> None:
    look(age=snapshot.FRESH_SECONDS + 50, moet_steps_total=7).write(tmp_path)
    found = scrape(tmp_path)
    assert found["moet_worker_up"] == {("0",): 0.0}
    assert 60 <= found["moet_snapshot_age_seconds"]["0",] < 65
    assert "moet_steps_total" not in found and "moet_worker_info" not in found


def test_a_dead_worker_is_not_shown_as_alive(tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        look(pid=worker.pid, moet_steps_total=7).write(tmp_path)
        assert scrape(tmp_path)["moet_worker_up"] == {("0",): 1.0}
    finally:
        worker.kill()
    for _ in range(500):  # it is a zombie until it is waited for, which must count as dead too
        if snapshot.process_ticks(worker.pid) is None:
            break
        time.sleep(0.01)
    assert scrape(tmp_path)["moet_worker_up"] == {("0",): 0.0}
    worker.wait()
    assert "moet_steps_total" not in scrape(tmp_path)


def test_another_process_of_the_same_number_is_not_the_worker(tmp_path: Path) -> None:
    mine = look()
    later = Snapshot(mine.rank, mine.size, mine.pid, mine.started_ticks - 1, mine.written_unix, INFO)
    later.write(tmp_path)
    assert scrape(tmp_path)["moet_worker_up"] == {("0",): 0.0}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rank": 0}', "null"])
def test_what_is_no_snapshot_is_left_out(tmp_path: Path, content: str) -> None:
    look(1, 2).write(tmp_path)
    (tmp_path / "rank-0.json").write_text(content)
    assert scrape(tmp_path)["moet_worker_up"] == {("0",): 0.0, ("1",): 1.0}


def test_a_snapshot_of_another_version_is_left_out(tmp_path: Path) -> None:
    look().write(tmp_path)
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    assert scrape(tmp_path) == {"moet_workers_expected": {(): 0.0}}


def test_the_folder_is_for_its_user_alone_and_holds_no_leftovers(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "folder"
    look().write(place)
    look().write(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [path.name for path in place.iterdir()] == ["rank-0.json"]


# ---- the folder's name


def test_the_first_process_names_the_folder_and_its_children_know_it(monkeypatch) -> None:
    monkeypatch.setenv(folder.VARIABLE, "/of/another/server")
    monkeypatch.setattr(folder, "_own", None)
    place = folder.announce()
    assert str(place) != "/of/another/server" and not place.exists()
    assert folder.of_process() == folder.announce() == place
    child = multiprocessing.get_context("spawn").Pool(1)
    with child:
        assert child.apply(_announced) == str(place)
    place.mkdir()
    folder._remove(place, owner=-1)  # what a forked child inherits
    assert place.exists()
    folder._remove(place, owner=os.getpid())
    assert not place.exists()


IN_ONE_PROCESS = """
import os, sys, time
from multiprocessing.util import Finalize
from moet_w2.metrics import folder
from moet_w2.metrics.reporter import Reporter
from moet_w2.metrics.snapshot import Snapshot
place = folder.announce()
reporter = Reporter(place, lambda: Snapshot(0, 1, os.getpid(), 1, time.time(), {}), every=0.001)
reporter.start()
Finalize(None, reporter.close, exitpriority=1)
time.sleep(0.05)
print(place, place.is_dir())
"""


def test_an_engine_in_the_first_process_leaves_no_folder() -> None:
    """The reporter's last snapshot comes before the folder is removed, not after."""
    done = subprocess.run([sys.executable, "-c", IN_ONE_PROCESS], capture_output=True, text=True, timeout=60)
    place, there = done.stdout.split()
    assert there == "True" and done.stderr == ""
    assert not Path(place).exists()


def _announced() -> str:
    return str(folder.announce())


def test_two_servers_have_two_folders(monkeypatch) -> None:
    names = set()
    for _ in range(2):
        monkeypatch.delenv(folder.VARIABLE, raising=False)
        monkeypatch.setattr(folder, "_own", None)
        names.add(folder.announce())
    assert len(names) == 2


def test_a_process_that_nobody_told_has_none(monkeypatch) -> None:
    monkeypatch.delenv(folder.VARIABLE, raising=False)
    assert folder.of_process() is None


# ---- vLLM's registry


@pytest.fixture
def unattached(monkeypatch):
    """vLLM's module of the registry and an empty registry of the process, nothing attached."""
    from vllm.v1.metrics import prometheus

    registry = CollectorRegistry(auto_describe=True)
    monkeypatch.setattr(collector, "_attached", None)
    monkeypatch.setattr(collector, "REGISTRY", registry)
    monkeypatch.setattr(prometheus, "REGISTRY", registry)
    # An earlier test of this process may have attached the plugin for good.
    monkeypatch.setattr(prometheus, "get_prometheus_registry", inspect.unwrap(prometheus.get_prometheus_registry))
    monkeypatch.setattr(folder, "_own", None)
    monkeypatch.delenv(folder.VARIABLE, raising=False)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return prometheus


def test_one_api_server_shows_it(unattached) -> None:
    collector.attach()
    collector.attach()  # a plugin runs several times
    shown = generate_latest(unattached.get_prometheus_registry()).decode()
    assert shown.count("\nmoet_workers_expected 0.0") == 1


def test_several_api_servers_show_it_too(unattached, monkeypatch, tmp_path: Path) -> None:
    collector.attach()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    registry = unattached.get_prometheus_registry()
    assert registry is not collector.REGISTRY
    assert "moet_workers_expected 0.0" in generate_latest(registry).decode()


def test_a_vllm_without_the_registry_is_refused(unattached, monkeypatch) -> None:
    from moet_w2.errors import UnsupportedError

    monkeypatch.delattr(unattached, "get_prometheus_registry")
    with pytest.raises(UnsupportedError, match="this vLLM is not the pinned one"):
        collector.attach()


def test_the_pinned_api_server_takes_the_function_that_is_wrapped() -> None:
    from vllm.entrypoints.serve.instrumentator import metrics
    from vllm.v1.metrics import prometheus

    assert metrics.get_prometheus_registry is prometheus.get_prometheus_registry


# ---- the reporter


def test_the_reporter_writes_at_once_and_goes_on(tmp_path: Path) -> None:
    counted = []
    reporter = Reporter(tmp_path, lambda: look(moet_steps_total=len(counted)), lambda: counted.append(1), every=0.01)
    reporter.start()
    assert snapshot.read(tmp_path)[0].values == {"moet_steps_total": 0}
    deadline = time.monotonic() + 10
    while len(counted) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    reporter.close()
    written = snapshot.read(tmp_path)[0].values["moet_steps_total"]
    assert written == len(counted) - 1 >= 3  # the last one is written when it is closed
    time.sleep(0.05)
    assert len(counted) == written + 1


def test_a_reporter_that_cannot_write_warns_once_and_goes_on(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.WARNING, logger="vllm.moet_w2.metrics")
    (tmp_path / "file").write_text("")
    reporter = Reporter(tmp_path / "file", look)
    reporter.once()
    reporter.once()
    assert caplog.text.count("a snapshot was not written to") == 1
    (tmp_path / "file").unlink()
    reporter.once()
    assert snapshot.read(tmp_path / "file")
    assert table.WORKER_UP.name in scrape(tmp_path / "file")
