"""The cache on real files: publication, eligibility, loading, and the faults that must be held."""

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import own_mounts
import pytest
import torch
from generators import TINY, device_layer, filled_layer, write_checkpoint

from moet_w2 import checkpoint, cli, quantizer_abi
from moet_w2.cache import admin, key, layout
from moet_w2.cache.eligibility import Miss, judge
from moet_w2.cache.key import CacheKey
from moet_w2.cache.load import load
from moet_w2.cache.publish import publish, remove_leftovers
from moet_w2.cache.session import Session
from moet_w2.errors import CacheError
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import Shard, W2Layer
from moet_w2.placement import Placement
from moet_w2.topology import Locality

KEY = CacheKey("checkpoint-a", TINY, Shard(), 2, source="/models/a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    layer, _ = filled_layer(TINY)
    publish(tmp_path / "cache", KEY, layer)
    return tmp_path / "cache"


def payload(root: Path, layer: int = 0) -> Path:
    return layout.payload_path(layout.folder(root, KEY), layer)


def sidecar(root: Path, layer: int = 0) -> Path:
    return layout.sidecar_path(layout.folder(root, KEY), layer)


def read_back(root: Path, wanted: CacheKey = KEY) -> tuple[Miss | None, W2Layer]:
    layer = device_layer(wanted.geometry)
    miss = judge(root, wanted, [0])[0]
    if miss is None:
        miss = load(root, wanted, [layer])[0].miss
    return miss, layer


# ---- what is written comes back


def test_a_published_layer_comes_back_bit_for_bit(root: Path) -> None:
    miss, layer = read_back(root)
    assert miss is None and layer.complete and layer.origin == "cache"
    assert torch.equal(layer.storage, filled_layer(TINY)[0].storage)


def test_a_mapped_layer_is_read_where_it_stays(root: Path) -> None:
    host = HostAllocation("layer 0", TINY.nbytes, Locality(0, (0,), "the only node"))
    layer = W2Layer(0, TINY, Placement.MAPPED, host.tensor(), host)
    result = load(root, KEY, [layer])[0]
    assert result.miss is None
    assert torch.equal(layer.storage, filled_layer(TINY)[0].storage)
    host.close()


def test_many_layers_in_small_batches(tmp_path: Path) -> None:
    source = {number: filled_layer(TINY, seed=number)[0] for number in range(7)}
    for number, layer in source.items():
        layer.key = number
        publish(tmp_path, KEY, layer)
    layers = [device_layer(TINY, number) for number in source]
    seen: list[int] = []
    results = load(tmp_path, KEY, layers, workers=3, batch=2, progress=seen.append)
    assert [result.miss for result in results] == [None] * 7
    assert all(torch.equal(layer.storage, source[layer.key].storage) for layer in layers)
    assert sum(seen) == 7 * TINY.nbytes


def test_the_payload_is_the_canonical_layout_behind_one_page(root: Path) -> None:
    content = payload(root).read_bytes()
    assert len(content) == layout.HEAD + TINY.nbytes and layout.HEAD % 4096 == 0
    assert content[layout.HEAD :] == filled_layer(TINY)[0].storage.numpy().tobytes()


# ---- keys


@pytest.fixture
def report(tmp_path: Path) -> checkpoint.CheckpointReport:
    write_checkpoint(tmp_path / "model")
    return checkpoint.inspect(tmp_path / "model")


def test_the_key_is_stable_and_follows_the_checkpoint(report: checkpoint.CheckpointReport) -> None:
    made = key.make(report, report.geometry, Shard())
    assert key.make(report, report.geometry, Shard()).digest == made.digest
    shard = report.path / "model-00001-of-00002.safetensors"
    facts = shard.stat()
    content = shard.read_bytes()
    shard.write_bytes(content)  # rewritten in place: same name, size and bytes, another time
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert key.make(report, report.geometry, Shard()).digest != made.digest
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert key.make(report, report.geometry, Shard()).digest == made.digest
    config = report.path / "config.json"
    config.write_text(config.read_text() + " ")
    assert key.make(report, report.geometry, Shard()).digest != made.digest


def test_everything_that_changes_bytes_changes_the_key(root: Path, monkeypatch) -> None:
    changed = [
        replace(KEY, checkpoint="checkpoint-b"),
        replace(KEY, geometry=LayerGeometry(TINY.experts, TINY.hidden, 2 * TINY.width)),
        replace(KEY, shard=Shard(1, 2)),
        replace(KEY, layers=3),
    ]
    assert len({each.digest for each in [KEY, *changed]}) == 5
    assert all(judge(root, each, [0]) == {0: Miss.NO_FOLDER} for each in changed)
    monkeypatch.setattr(quantizer_abi, "QUANTIZER_ABI", quantizer_abi.QUANTIZER_ABI + 1)
    assert judge(root, replace(KEY), [0]) == {0: Miss.NO_FOLDER}
    monkeypatch.undo()
    monkeypatch.setattr(quantizer_abi, "ZERO_MODE", "another")
    assert judge(root, replace(KEY), [0]) == {0: Miss.NO_FOLDER}


# ---- every reason for a miss


def edit_sidecar(root: Path, **changes) -> None:
    document = json.loads(sidecar(root).read_text())
    sidecar(root).write_text(json.dumps(document | changes))


def link_payload(root: Path) -> None:
    outside = root.parent / "outside.w2"
    payload(root).rename(outside)
    payload(root).symlink_to(outside)


def link_folder(root: Path) -> None:
    folder = layout.folder(root, KEY)
    folder.rename(root.parent / "elsewhere")
    folder.symlink_to(root.parent / "elsewhere")


def resize(root: Path, nbytes: int) -> None:
    os.truncate(payload(root), nbytes)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


WHOLE = layout.HEAD + TINY.nbytes
FAULTS = {
    "the folder is gone": (lambda root: shutil.rmtree(layout.folder(root, KEY)), Miss.NO_FOLDER),
    "the folder is a link": (link_folder, Miss.FOREIGN_FOLDER),
    "the payload is gone": (lambda root: payload(root).unlink(), Miss.NO_PAYLOAD),
    "the sidecar is gone": (lambda root: sidecar(root).unlink(), Miss.NO_SIDECAR),
    "the payload is a link": (link_payload, Miss.NOT_A_FILE),
    "the sidecar is no JSON": (lambda root: sidecar(root).write_text("{"), Miss.BROKEN_SIDECAR),
    "the sidecar is empty": (lambda root: sidecar(root).write_text(""), Miss.BROKEN_SIDECAR),
    "the sidecar has another format": (lambda root: edit_sidecar(root, format=0), Miss.BROKEN_SIDECAR),
    "the sidecar has a strange field": (lambda root: edit_sidecar(root, more=1), Miss.BROKEN_SIDECAR),
    "the sidecar is of another key": (lambda root: edit_sidecar(root, key="0" * 64), Miss.OTHER_KEY),
    "the sidecar is of another layer": (lambda root: edit_sidecar(root, layer=1), Miss.OTHER_LAYER),
    "the sidecar vouches for other bytes": (lambda root: edit_sidecar(root, nbytes=5), Miss.WRONG_BYTES),
    "the payload is truncated": (lambda root: resize(root, WHOLE - 1), Miss.WRONG_SIZE),
    "the payload is extended": (lambda root: resize(root, WHOLE + 1), Miss.WRONG_SIZE),
    "the payload is empty": (lambda root: resize(root, 0), Miss.WRONG_SIZE),
    "the magic is flipped": (lambda root: flip(payload(root), 0), Miss.BROKEN_HEAD),
    "the head's text is flipped": (lambda root: flip(payload(root), 40), Miss.BROKEN_HEAD),
    "the head's end is flipped": (lambda root: flip(payload(root), layout.HEAD - 1), Miss.BROKEN_HEAD),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_miss_with_its_own_word_and_is_mended_by_the_next_start(root: Path, fault: str, caplog) -> None:
    """Through a whole start: the log says which and why, the layer is built, and the next start reads it."""
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    break_it, word = FAULTS[fault]
    break_it(root)
    miss, layer = read_back(root)
    assert miss == word and not layer.complete
    start_over(root)
    told = Miss.NO_PAYLOAD if word is Miss.NO_FOLDER else word  # a start makes its folder
    assert f"1 layers are built from the checkpoint ({told}): [0]" in caplog.text
    miss, layer = read_back(root)
    if word is Miss.FOREIGN_FOLDER:
        # Nothing is written where a link leads, not even to mend it.
        assert miss is word and "a cache folder must not be a symbolic link" in caplog.text
        assert [path.name for path in (root.parent / "elsewhere").glob(".*")] == []
    else:
        assert miss is None and torch.equal(layer.storage, filled_layer(TINY)[0].storage)


def start_over(root: Path, key: CacheKey = KEY) -> W2Layer:
    """A start of one layer: read it, or build and keep it."""
    session, layer = Session(root, key), device_layer(key.geometry)
    session.fill([layer])
    if not layer.complete:
        for place, tensor in filled_layer(key.geometry)[1].items():
            layer.put(*place, tensor)
    session.built(layer)
    session.close()
    return layer


def test_words_are_all_different_and_all_tested() -> None:
    assert len({str(miss) for miss in Miss}) == len(Miss)
    elsewhere = {Miss.UNREADABLE, Miss.READ_ERROR}
    assert {word for _, word in FAULTS.values()} | elsewhere == set(Miss)


STALE = {
    "another checkpoint": lambda monkeypatch: replace(KEY, checkpoint="checkpoint-b"),
    "another quantizer": lambda monkeypatch: monkeypatch.setattr(quantizer_abi, "QUANTIZER_ABI", 99),
    "another zero mode": lambda monkeypatch: monkeypatch.setattr(quantizer_abi, "ZERO_MODE", "another"),
    "another rank": lambda monkeypatch: replace(KEY, shard=Shard(1, 2)),
}
DIFFERENCES = {
    "another checkpoint": "checkpoint checkpoint-a, here checkpoint-b",
    "another quantizer": f"quantizer_abi {quantizer_abi.QUANTIZER_ABI}, here 99",
    "another zero mode": f"zero_mode {quantizer_abi.ZERO_MODE[:12]}, here another",
    "another rank": "tp_rank 0, here 1, tp_size 1, here 2",
}


@pytest.mark.parametrize("change", STALE)
def test_a_stale_key_is_told_with_what_changed_and_the_layer_is_built(
    root: Path, monkeypatch, caplog, change: str
) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    before = payload(root)
    key = STALE[change](monkeypatch) or replace(KEY)
    session, layer = Session(root, key), device_layer(TINY)
    session.fill([layer])
    assert not layer.complete and session.misses == {0: Miss.NO_PAYLOAD}
    session.close()
    assert f"{before.parent} is of another key: {DIFFERENCES[change]}" in caplog.text
    start_over(root, key)
    assert judge(root, key, [0]) == {0: None}
    assert before.is_file()  # the stale one is left to moet cache prune


@pytest.mark.parametrize("forbid", ["the payload", "the sidecar", "the folder"])
def test_permissions(forbid: str, caplog) -> None:
    """As a user who may not read: root may everything, so a child gives that up."""
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        root = Path(folder)
        publish(root, KEY, filled_layer(TINY)[0])
        directory = layout.folder(root, KEY)
        target = {"the payload": payload(root), "the sidecar": sidecar(root), "the folder": directory}[forbid]
        target.chmod(0)
        for path in (root, directory):
            path.chmod(0o755 if path != target else 0)
        reader, writer = os.pipe()
        layer = device_layer(TINY)

        def start_as_another() -> None:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            logging.getLogger("vllm.moet_w2.cache").addHandler(logging.StreamHandler(os.fdopen(writer, "w")))
            session = Session(root, KEY)
            session.fill([layer])

        os.waitpid(in_child(start_as_another), 0)
        os.close(writer)
        with os.fdopen(reader) as file:
            log = file.read()
        for path in (directory, target):
            path.chmod(0o755)
    assert "1 layers are built from the checkpoint (unreadable): [0]" in log
    assert "cannot be written ([Errno 13] Permission denied" in log or os.getuid()


def test_a_read_that_fails_half_way_leaves_an_incomplete_layer(root: Path, monkeypatch) -> None:
    real = os.preadv

    def fail_later(descriptor, buffers, offset):
        if offset > layout.HEAD:
            raise OSError(errno.EIO, "made up")
        return real(descriptor, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "preadv", fail_later)
    layer = device_layer(TINY)
    assert load(root, KEY, [layer])[0].miss is Miss.READ_ERROR
    assert not layer.complete


def test_a_file_that_shrinks_while_it_is_read_is_a_read_error(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda *args: 0)
    assert load(root, KEY, [device_layer(TINY)])[0].miss is Miss.READ_ERROR


# ---- eligibility is cheap


def test_eligibility_of_real_sized_layers_is_quick_and_reads_sidecars_alone(tmp_path: Path) -> None:
    real = CacheKey("big", LayerGeometry(256, 4096, 2048), Shard(), 46)
    directory = layout.folder(tmp_path, real)
    directory.mkdir()
    for layer in range(46):
        path = layout.payload_path(directory, layer)
        path.touch()
        os.truncate(path, layout.HEAD + real.geometry.nbytes)  # sparse
        sidecar = layout.Sidecar(real.digest, layer, real.geometry.nbytes, "0" * 64)
        layout.sidecar_path(directory, layer).write_text(sidecar.to_json())
    sidecars = sum(path.stat().st_size for path in directory.glob("*.json"))
    opened: list[str] = []
    watching = True
    sys.addaudithook(lambda event, args: watching and event == "open" and opened.append(str(args[0])))
    before = bytes_read()
    asking = bytes_read() - before
    before = bytes_read()
    start = time.perf_counter()
    verdicts = judge(tmp_path, real, range(46))
    seconds = time.perf_counter() - start
    read = bytes_read() - before - asking
    watching = False
    assert set(verdicts.values()) == {None} and len(verdicts) == 46
    assert seconds < 0.1
    assert len([name for name in opened if name.endswith(".json")]) == 46
    assert not [name for name in opened if name.endswith(".w2")]
    assert read == pytest.approx(sidecars, abs=64)


def bytes_read() -> int:
    """Bytes that this thread's read calls have returned, by the kernel's own count."""
    return int(Path("/proc/thread-self/io").read_text().split()[1])


# ---- publication and crashes


BIG = LayerGeometry(experts=16, hidden=256, width=256)
BIG_KEY = CacheKey("checkpoint-a", BIG, Shard(), 1)


def in_child(work) -> int:
    """Fork, run ``work`` in the child, return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def never_wrong(root: Path, expected: torch.Tensor) -> bool:
    """Whatever a crash left: either not eligible, or whole. Whether it was eligible."""
    layer = device_layer(BIG)
    if judge(root, BIG_KEY, [0])[0] is not None or load(root, BIG_KEY, [layer])[0].miss is not None:
        return False
    assert torch.equal(layer.storage, expected)
    assert admin.verify(admin.find(root, "")) == []
    return True


@pytest.mark.parametrize("fresh", [True, False], ids=["into nothing", "over an old one"])
def test_kill_at_random_points_of_publication(tmp_path: Path, fresh: bool) -> None:
    layer, _ = filled_layer(BIG)
    old = torch.zeros_like(layer.storage)
    start = time.perf_counter()
    publish(tmp_path / "undisturbed", BIG_KEY, layer)
    whole = time.perf_counter() - start
    chance = random.Random(0)
    outcomes = set()
    for number in range(25):
        root = tmp_path / str(number)
        if not fresh:
            publish(root, BIG_KEY, W2Layer(0, BIG, Placement.DEVICE, old.clone()))
        pid = in_child(lambda root=root: publish(root, BIG_KEY, layer))
        time.sleep(chance.uniform(0, 1.5 * whole))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left = device_layer(BIG)
        if judge(root, BIG_KEY, [0])[0] is None and load(root, BIG_KEY, [left])[0].miss is None:
            # The old layer is as whole as the new one; a mixture of both is what must not be.
            assert torch.equal(left.storage, layer.storage) or (not fresh and torch.equal(left.storage, old))
            assert admin.verify(admin.find(root, "")) == []
            outcomes.add("eligible")
        else:
            outcomes.add("miss")
        publish(root, BIG_KEY, layer)  # the next start mends it, and cleans up
        assert never_wrong(root, layer.storage)
        assert not list(root.glob(f"*/{layout.TEMPORARY}*"))
    assert "eligible" in outcomes or fresh


def test_death_at_every_single_step_of_publication(tmp_path: Path) -> None:
    """Die before the n-th call of those that change the disk, for every n."""
    layer, _ = filled_layer(BIG)
    misses = 0
    for number in range(1, 40):
        root = tmp_path / str(number)

        def die(root=root, number=number) -> None:
            count = 0

            def counted(real):
                def call(*args, **kwargs):
                    nonlocal count
                    count += 1
                    if count == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)

                return call

            for name in ("fsync", "unlink", "replace", "open", "mkdir"):
                setattr(os, name, counted(getattr(os, name)))
            publish(root, BIG_KEY, layer)

        pid = in_child(die)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            break
        misses += not never_wrong(root, layer.storage)
        publish(root, BIG_KEY, layer)
        assert never_wrong(root, layer.storage)
    else:
        pytest.fail("publication takes more steps than were tried")
    assert misses >= 5  # most steps come before the sidecar


def test_a_broken_order_would_be_caught(tmp_path: Path, monkeypatch) -> None:
    """The gate works: with the sidecar written first, a crash leaves an eligible layer that is not whole."""
    layer, _ = filled_layer(BIG)
    directory = layout.folder(tmp_path, BIG_KEY)
    directory.mkdir()
    vouched = layout.Sidecar(BIG_KEY.digest, 0, BIG.nbytes, "0" * 64)
    layout.sidecar_path(directory, 0).write_text(vouched.to_json())
    head = layout.head(BIG_KEY.digest, 0, BIG.nbytes)
    layout.payload_path(directory, 0).write_bytes(head + bytes(BIG.nbytes))
    (directory / layout.KEY_FILE).write_text("{}")
    with pytest.raises(AssertionError):
        never_wrong(tmp_path, layer.storage)


def test_two_writers_and_a_reader_at_once(tmp_path: Path) -> None:
    layer, _ = filled_layer(BIG)
    publish(tmp_path, BIG_KEY, layer)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(10):
                publish(tmp_path, BIG_KEY, layer)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        read = device_layer(BIG)
        if judge(tmp_path, BIG_KEY, [0])[0] is None and load(tmp_path, BIG_KEY, [read])[0].miss is None:
            assert torch.equal(read.storage, layer.storage)
    assert not errors
    assert never_wrong(tmp_path, layer.storage)


def test_two_servers_start_on_one_empty_cache(tmp_path: Path) -> None:
    """Two processes that build and publish the same layers at once; a third start reads them all."""
    built = []
    for number in range(4):
        layer, _ = filled_layer(BIG, seed=number)
        layer.key = number
        built.append(layer)
    # Made before the forks: torch's own threads are not there in a child.
    empty = [device_layer(BIG, layer.key) for layer in built]
    go_reader, go_writer = os.pipe()

    def first_start() -> None:
        session = Session(tmp_path, BIG_KEY)
        os.read(go_reader, 1)
        session.fill(empty)
        for layer in built:
            session.built(layer)
        session.close()

    children = [in_child(first_start) for _ in range(2)]
    time.sleep(0.2)  # until both wait
    os.write(go_writer, b"go")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    os.close(go_reader)
    os.close(go_writer)
    third, layers = Session(tmp_path, BIG_KEY), [device_layer(BIG, layer.key) for layer in built]
    third.fill(layers)
    assert third.misses == {}
    assert all(torch.equal(layer.storage, source.storage) for layer, source in zip(layers, built, strict=True))
    third.close()
    assert admin.verify(admin.find(tmp_path, "")) == []
    assert not list(tmp_path.glob(f"*/{layout.TEMPORARY}*"))


def test_a_living_writers_temporary_file_is_left_alone(root: Path) -> None:
    directory = layout.folder(root, KEY)
    stale = directory / f"{layout.TEMPORARY}layer-001.w2-1-dead"
    stale.write_bytes(b"half")
    code = (
        "import fcntl,sys; f=open(sys.argv[1],'xb'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('ok', flush=True); sys.stdin.read()"
    )
    living = directory / f"{layout.TEMPORARY}layer-002.w2-2-living"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(living)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        writer.stdout.readline()
        assert remove_leftovers(directory) == 1
        assert living.exists() and not stale.exists()
        writer.stdin.close()
    assert remove_leftovers(directory) == 1 and not living.exists()


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch) -> None:
    import fcntl

    from moet_w2.cache import publish as publish_module

    real, robbed = fcntl.flock, []

    def rob_first(file, operation):
        if not robbed and operation == fcntl.LOCK_EX:
            robbed.extend(tmp_path.glob(f"{layout.TEMPORARY}*"))
            robbed[0].unlink()  # as remove_leftovers of another process does between open and flock
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", rob_first)
    publish_module.write_atomically(tmp_path, "key.json", b"whole")
    assert robbed and (tmp_path / "key.json").read_bytes() == b"whole"
    assert not list(tmp_path.glob(f"{layout.TEMPORARY}*"))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """On a filesystem that really is full."""
    layer, _ = filled_layer(BIG)
    left = device_layer(BIG)

    def work() -> object:
        own_mounts.mount("tmpfs", tmp_path, f"size={BIG.nbytes + BIG.nbytes // 2}")
        publish(tmp_path, BIG_KEY, layer)
        layer.key = 1
        with pytest.raises(OSError, match="No space left on device"):
            publish(tmp_path, BIG_KEY, layer)
        names = sorted(path.name for path in layout.folder(tmp_path, BIG_KEY).iterdir())
        miss = load(tmp_path, BIG_KEY, [left])[0].miss
        return (
            names,
            judge(tmp_path, BIG_KEY, [0, 1]),
            miss,
            bytes(left.storage.numpy()) == bytes(layer.storage.numpy()),
        )

    names = ["key.json", "layer-000.json", "layer-000.w2"]
    assert own_mounts.run(work) == str((names, {0: None, 1: Miss.NO_PAYLOAD}, None, True))


# ---- a process's session


def test_a_session_reads_what_it_may_and_publishes_the_rest(root: Path, caplog) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    session = Session(root, KEY)
    layers = [device_layer(TINY, 0), device_layer(TINY, 1)]
    session.fill(layers)
    assert [layer.complete for layer in layers] == [True, False]
    assert session.misses == {1: Miss.NO_PAYLOAD}
    assert "1 of 2 layers read" in caplog.text and "(no-payload): [1]" in caplog.text
    source, tensors = filled_layer(TINY, seed=1)
    for place, tensor in tensors.items():
        layers[1].put(*place, tensor)
    for layer in layers:
        session.built(layer)
    session.wait()
    assert judge(root, KEY, [0, 1]) == {0: None, 1: None}
    assert set(session.seconds) == {"eligibility", "planes"}
    session.close()
    again = Session(root, KEY)
    layers = [device_layer(TINY, 0), device_layer(TINY, 1)]
    again.fill(layers)
    assert again.misses == {} and torch.equal(layers[1].storage, source.storage)
    again.close()


def test_only_what_was_missed_is_written_again(root: Path) -> None:
    before = payload(root).stat().st_ino
    session = Session(root, KEY)
    layer = device_layer(TINY, 0)
    session.fill([layer])
    session.built(layer)
    session.close()
    assert payload(root).stat().st_ino == before


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_cache_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path, monkeypatch, caplog, code) -> None:
    from moet_w2.cache import session as session_module

    def refuse(*args):
        raise OSError(code, os.strerror(code))

    session = Session(tmp_path, KEY)
    layer = device_layer(TINY, 0)
    session.fill([layer])
    monkeypatch.setattr(session_module, "publish", refuse)
    session.built(layer)
    session.wait()
    session.close()
    assert f"layer 0 was not published: [Errno {code}]" in caplog.text


def test_a_read_only_cache_is_read_all_the_same_and_told(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    source, layers = filled_layer(TINY)[0], [device_layer(TINY, 0), device_layer(TINY, 1)]

    def work() -> object:
        own_mounts.mount("tmpfs", tmp_path)
        publish(tmp_path, KEY, source)
        own_mounts.mount("tmpfs", tmp_path, flags=own_mounts.REMOUNT | own_mounts.READ_ONLY)
        session = Session(tmp_path, KEY)
        session.fill(layers)
        complete = [layer.complete for layer in layers]
        equal = bytes(layers[0].storage.numpy()) == bytes(source.storage.numpy())
        layers[1].adopt()  # as if built
        session.built(layers[1])
        session.close()
        found = admin.find(tmp_path, "")
        return complete, equal, found.layers, found.in_use, caplog.text

    text = own_mounts.run(work)
    assert text.startswith("([True, False], True, (0,), False, ")
    assert "cannot be written ([Errno 30] Read-only file system" in text
    assert "1 layers are built from the checkpoint (no-payload): [1]" in text
    assert "was not published" not in text


# ---- moet cache


def test_listing(root: Path) -> None:
    entry = admin.find(root, "")
    assert (entry.layers, entry.in_use, entry.key["checkpoint"]) == ((0,), False, "checkpoint-a")
    assert entry.nbytes > TINY.nbytes
    with admin.hold(entry.directory):
        assert admin.find(root, entry.directory.name[:6]).in_use
    with pytest.raises(CacheError, match="0 caches below .* begin with 'zz'"):
        admin.find(root, "zz")
    with pytest.raises(CacheError, match="does not exist"):
        admin.entries(root / "none")


@pytest.mark.parametrize("offset", [0, 100, layout.HEAD, layout.HEAD + TINY.nbytes // 2, WHOLE - 1])
def test_verify_finds_one_flipped_bit_anywhere(root: Path, offset: int) -> None:
    assert admin.verify(admin.find(root, "")) == []
    flip(payload(root), offset)
    problems = admin.verify(admin.find(root, ""))
    assert len(problems) == 1 and str(payload(root)) in problems[0]


def test_the_command(root: Path, tmp_path: Path, capsys) -> None:
    def moet(*words: object) -> tuple[int, str, str]:
        code = cli.main(["cache", *map(str, words)])
        return code, *capsys.readouterr()

    name = layout.folder(root, KEY).name
    code, out, _ = moet("ls", root)
    assert code == 0 and out.startswith(f"{name}  1 of 2 layers, ")
    assert f"quantizer {quantizer_abi.QUANTIZER_ABI}, checkpoint checkpoint-a (/models/a), used just now" in out
    (tmp_path / "copy").mkdir()
    assert moet("export", root, name, tmp_path / "copy")[:2] == (0, f"{tmp_path}/copy/{name}\n")
    code, out, err = moet("verify", root, name[:4])
    assert code == 0 and "1 layers verified" in out and "verify: 0.00 of 0.00 GiB (1 layers)" in err
    flip(payload(root), WHOLE - 1)
    code, out, err = moet("verify", root, name[:4])
    assert code == 1 and str(payload(root)) in err and out == ""
    with admin.hold(layout.folder(root, KEY)):
        code, out, err = moet("prune", root, name)
        assert code == 2 and "is in use by a running server; stop it first" in err and payload(root).exists()
        assert "in use" in moet("ls", root)[1]
    assert moet("prune", root, name)[0] == 0 and not payload(root).exists()
    assert moet("ls", tmp_path / "none")[0] == 2


def test_a_folder_that_was_removed_while_it_was_opened_is_not_used(root: Path, monkeypatch) -> None:
    directory, real = layout.folder(root, KEY), admin._open_lock

    def open_and_lose(path: Path) -> int:
        file = real(path)
        shutil.rmtree(path)  # as prune of another process does between open and flock
        return file

    monkeypatch.setattr(admin, "_open_lock", open_and_lose)
    with pytest.raises(CacheError, match="is being removed"), admin.hold(directory):
        pass


def test_verify_finds_a_payload_that_nobody_vouches_for(root: Path) -> None:
    sidecar(root).unlink()
    assert "cannot be verified" in admin.verify(admin.find(root, ""))[0]


def test_prune_refuses_while_a_server_lives_and_a_crash_frees_it(root: Path) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from moet_w2.cache import admin
        with admin.hold(Path({str(layout.folder(root, KEY))!r})):
            print("held", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        server.stdout.readline()
        with pytest.raises(CacheError, match="in use by a running server"):
            admin.prune(admin.find(root, ""))
        server.kill()
        server.wait()
    admin.prune(admin.find(root, ""))
    assert list(root.iterdir()) == []


def test_a_cache_that_is_being_removed_is_not_used(root: Path) -> None:
    import fcntl

    directory = layout.folder(root, KEY)
    with admin.hold(directory):
        pass
    descriptor = os.open(directory / layout.IN_USE, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(CacheError, match="is being removed"), admin.hold(directory):
        pass
    os.close(descriptor)


def test_export_copies_a_cache_that_verifies_and_nothing_else(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    copied = admin.export(admin.find(root, ""), target)
    assert judge(target, KEY, [0]) == {0: None} and copied.parent == target
    with pytest.raises(CacheError, match="exists"):
        admin.export(admin.find(root, ""), target)
    shutil.rmtree(copied)
    flip(payload(root), WHOLE - 1)
    with pytest.raises(CacheError, match="not exported"):
        admin.export(admin.find(root, ""), target)
    assert list(target.iterdir()) == []


# ---- what is foreign is told and never touched


def inventory(folder: Path) -> dict[str, bytes | None]:
    """Every file of a folder with its bytes, every folder with None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def cache_verbs(root: Path, name: str, target: Path) -> dict[str, list[str]]:
    given = {"ls": [], "verify": [name], "prune": [name], "export": [name, str(target)]}
    return {verb: ["cache", verb, str(root), *more] for verb, more in given.items()}


@pytest.mark.parametrize("verb", ["verify", "prune", "export", "ls"])
@pytest.mark.parametrize("case", ["foreign", "empty", "a cache", "its parent", "a file", "missing"])
def test_a_root_that_is_none_is_called_so_and_left_alone(
    root: Path, tmp_path: Path, capsys, verb: str, case: str
) -> None:
    name = layout.folder(root, KEY).name
    home = tmp_path / "home"
    (home / "certs").mkdir(parents=True)
    (home / "certs" / layout.KEY_FILE).write_text('{"private": 1}')  # a key file does not make a cache
    for number in range(6):
        (home / f"letter-{number}").touch()
    (tmp_path / "nothing").mkdir()
    others = "certs, letter-0, letter-1, letter-2, letter-3 and 2 more"
    remedy = "give the folder in VLLM_MOE_W2_PLANES_CACHE"
    given, said = {
        "foreign": (home, f"{home} holds no cache, but {others}; nothing was touched; {remedy}"),
        "empty": (tmp_path / "nothing", f"{tmp_path}/nothing holds no cache: it is empty until a server fills it"),
        "a cache": (root / name, f"{root}/{name} is itself a cache; give the folder that holds it, {root}"),
        "its parent": (tmp_path, f"{tmp_path} holds no cache, but {root} does; give that folder"),
        "a file": (home / "letter-0", f"cache folder {home}/letter-0 is no folder; {remedy}"),
        "missing": (home / "gone", f"cache folder {home}/gone does not exist; {remedy}"),
    }[case]
    before = inventory(tmp_path)
    code = cli.main(cache_verbs(given, "certs", tmp_path / "copy")[verb])
    captured = capsys.readouterr()
    refused = verb != "ls" or case in ("a file", "missing")
    assert (code, captured.out) == (2 if refused else 0, "")
    assert captured.err == f"moet: {'error' if refused else 'note'}: {said}\n"
    assert inventory(tmp_path) == before


def test_the_folder_here_is_known_by_its_name(root: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(layout.folder(root, KEY))
    assert cli.main(["cache", "prune", ".", "x"]) == 2
    assert f". is itself a cache; give the folder that holds it, {root}" in capsys.readouterr().err


def test_what_lies_beside_caches_is_named_and_is_no_cache(root: Path, tmp_path: Path, capsys) -> None:
    (root / "certs").mkdir()
    (root / "certs" / layout.KEY_FILE).write_text("{}")
    (root / ("0" * 24)).symlink_to(layout.folder(root, KEY))
    before = inventory(root)
    assert cli.main(["cache", "ls", str(root)]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert captured.err == f"moet: note: no caches, and left alone: {'0' * 24}, certs\n"
    for verb in ("verify", "prune", "export"):
        assert cli.main(cache_verbs(root, "certs", tmp_path / "copy")[verb]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"{root}/certs is no cache, and was not touched; moet cache ls names those that are")
    assert inventory(root) == before


def test_what_is_foreign_in_a_cache_is_never_removed_and_never_copied(root: Path, tmp_path: Path, capsys) -> None:
    directory = layout.folder(root, KEY)
    (directory / "notes.txt").write_text("mine")
    (directory / "older").mkdir()
    (directory / "older" / "layer-000.w2").write_text("mine too")
    name, before = directory.name, inventory(root)
    verbs = cache_verbs(root, name, tmp_path / "copy")
    for verb in ("ls", "verify", "export"):
        assert cli.main(verbs[verb]) == 0
        told = f"moet: note: cache {name} also holds notes.txt, older, which no server wrote; left alone\n"
        assert told in capsys.readouterr().err
    assert sorted(inventory(tmp_path / "copy")) == [
        name,
        *(f"{name}/{file}" for file in ("key.json", "layer-000.json", "layer-000.w2")),
    ]
    assert cli.main(verbs["prune"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"moet: error: cache {directory} also holds notes.txt, older, which no server wrote; ")
    assert line.endswith("nothing was removed; move that away first")
    assert inventory(root) == before
    (directory / "notes.txt").unlink()
    shutil.rmtree(directory / "older")
    (directory / "layer-007.w2").mkdir()  # what no server makes, whatever it is called
    assert cli.main(verbs["prune"]) == 2 and "holds layer-007.w2, which no server wrote" in capsys.readouterr().err
    (directory / "layer-007.w2").rmdir()
    assert cli.main(verbs["prune"]) == 0 and not directory.exists()


@pytest.mark.parametrize("steps", range(4))
def test_an_interrupted_prune_leaves_whole_layers_and_is_done_again(tmp_path: Path, monkeypatch, steps: int) -> None:
    for number in range(2):
        layer, _ = filled_layer(TINY, seed=number)
        layer.key = number
        publish(tmp_path, KEY, layer)
    real, left = Path.unlink, [steps]

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "made up", str(path))
        left[0] -= 1
        real(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(CacheError, match="cannot be removed .*made up.*; mend that and prune again"):
            admin.prune(admin.find(tmp_path, ""))
    for number, miss in judge(tmp_path, KEY, [0, 1]).items():
        layer = device_layer(TINY, number)
        assert miss is not None or load(tmp_path, KEY, [layer])[0].miss is None
    admin.prune(admin.find(tmp_path, ""))
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_no_folder_is_one_line(root: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert cli.main(cache_verbs(root, "", tmp_path / "file")["export"]) == 2
    assert capsys.readouterr().err.endswith(f"\nmoet: error: {tmp_path}/file is no folder; export elsewhere\n")


def test_a_full_disk_leaves_nothing_of_an_export(root: Path, tmp_path: Path, monkeypatch) -> None:
    def copy_half(source: Path, target: Path, ignore: object) -> None:
        target.mkdir(parents=True)
        (target / "layer-000.w2").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", copy_half)
    with pytest.raises(CacheError, match=r"not exported to .*No space left on device.*; export elsewhere"):
        admin.export(admin.find(root, ""), tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_root_that_may_be_entered_and_not_listed_stops_no_start(tmp_path: Path, monkeypatch, caplog) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    real = Path.iterdir

    def iterdir(path: Path):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(CacheError, match=r"cannot be read \(Permission denied\); ask as who may read it"):
        admin.entries(tmp_path)
    session = Session(tmp_path, KEY)
    session.fill([device_layer(TINY, 0)])
    session.close()
    assert "other keys are not told: cache folder" in caplog.text and session.misses == {0: Miss.NO_PAYLOAD}
