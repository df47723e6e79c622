"""Metrics and the audit of the start, hooked into a worker: what it reports, and what keeps it from becoming ready."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from correction_support import CPU, KEY, full_pack
from generators import TINY, device_layer
from metrics_support import engine, request, step, worker_class

from moet_w2 import audit
from moet_w2.audit import Audit
from moet_w2.config import W2Config
from moet_w2.correction.tier import Correction
from moet_w2.errors import AuditError, UnsupportedError
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import W2Layer
from moet_w2.metrics import attach, folder, serving, snapshot
from moet_w2.metrics.facts import Facts
from moet_w2.metrics.steps import Steps
from moet_w2.metrics.table import OF_SNAPSHOT
from moet_w2.placement import Placement, plan
from moet_w2.runtime import W2Runtime
from moet_w2.topology import Locality

DEVICE = {"type": "cpu", "name": "test", "pci": None, "numa": None}


@pytest.fixture
def here(tmp_path: Path):
    """A worker with one layer on the device and one in host memory, both complete."""
    config = W2Config(mapped_layers=(1,))
    record = Audit(tmp_path / "audit.json", plan(config, 2), DEVICE)
    made = W2Runtime(record.plan, CPU, None, record)
    host = HostAllocation("layer 1", TINY.nbytes, Locality(0, (0,), "the only node"))
    mapped = W2Layer(1, TINY, Placement.MAPPED, host.tensor(), host, reads=made.reads.words(1, TINY))
    made.layers = {0: device_layer(TINY), 1: mapped}
    for layer in made.layers.values():
        record.created(layer, 0)
    for layer in made.layers.values():
        record.loaded(layer, 0)
    yield made
    host.close()


@pytest.fixture
def server(here, tmp_path: Path, monkeypatch):
    """(worker, steps): metrics attached to a worker of a class of its own, a folder named, no thread started."""
    kind = worker_class()
    monkeypatch.setattr(attach, "resolve_obj_by_qualname", lambda name: kind)
    monkeypatch.setenv(folder.VARIABLE, str(tmp_path / "snapshots"))
    monkeypatch.setattr(attach, "Finalize", lambda *_, **__: None)
    monkeypatch.setattr(attach.Reporter, "start", lambda self: self.once())
    steps = attach.attach(here, engine(), "mine", 0, 1)
    return kind(), steps


def reported(tmp_path: Path) -> dict:
    return dict(snapshot.read(tmp_path / "snapshots")[0].values)


def test_a_worker_reports_once_it_could_serve(here, server, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO, logger="vllm.moet_w2.audit")
    worker, steps = server
    here.layers[1].reads.fill_(5)  # what warm-up reads
    assert worker.determine_available_memory() == 42
    assert not (tmp_path / "snapshots").exists()
    assert worker.compile_or_warm_up_model() == "warm"
    values = reported(tmp_path)
    assert values["moet_w2_layers"] == {"device": 1, "mapped": 1}
    assert values["moet_w2_bytes"] == {"device": TINY.nbytes, "mapped": TINY.nbytes}
    assert values["moet_w2_origin_layers"] == {"checkpoint": 2}
    assert values["moet_admission_tokens"] == 64 and values["moet_w2_redundant_bytes"] == 0
    assert {"kv", "graphs"} <= values["moet_startup_phase_seconds"].keys()
    assert values["moet_steps_total"] == 0 and steps.computed == 0  # what warm-up ran is not counted
    assert values["moet_mapped_read_bytes_total"] == 0
    document = audit.load(here.audit.path)
    assert document["state"] == "ready" and document["serving"]["profile"] == "mine"
    assert "the server may become ready" in caplog.text and "profile          mine" in caplog.text


def test_steps_are_counted_before_they_run(server, here) -> None:
    worker, steps = server
    worker.compile_or_warm_up_model()
    output = step({"a": 3}, new=[request("a", 5)])
    assert worker.execute_model(output) is output
    assert worker.execute_model(scheduler_output=step({"a": 2})).total_num_scheduled_tokens == 2
    assert (steps.steps, steps.computed) == (2, 5)
    counted = Facts(here, steps, 0, 1).look(7.0)
    assert counted.written_unix == 7.0
    assert counted.values["moet_prefill_computed_tokens_total"] == 5
    assert counted.values["moet_mapped_read_bytes_total"] == 0
    here.layers[1].reads[0] += 3  # as its calls do
    assert Facts(here, steps, 0, 1).look(8.0).values["moet_mapped_read_bytes_total"] == 3 * TINY.nbytes // TINY.experts


def test_every_value_that_is_reported_is_in_the_table(server, here, tmp_path: Path) -> None:
    """A name that the collector does not know would never be shown."""
    worker, _ = server
    worker.compile_or_warm_up_model()
    labels = {metric.name: metric.label for metric in OF_SNAPSHOT}
    full_pack(tmp_path / "store").close()
    tier = Correction(plan(W2Config(), 3), KEY, tmp_path / "store", 2, "freq", True, CPU)
    here.correction, here.cache = tier, SimpleNamespace(seconds={"planes": 1.5})
    facts = Facts(here, Steps(), 0, 1)
    here.audit.serving |= {"kv_cache_tokens": 128}
    values = Facts(here, facts.steps, 0, 1).look(0.0).values
    assert values.keys() == labels.keys()
    for name, value in values.items():
        assert isinstance(value, dict) == (labels[name] is not None), name
    tier.close()


def test_only_the_first_rank_reports_requests(server, here) -> None:
    """Every rank is handed every request: a sum over ranks would count a prompt once for each."""
    worker, steps = server
    worker.compile_or_warm_up_model()
    first, second = (Facts(here, steps, rank, 2).look(0.0).values for rank in (0, 1))
    assert {name for name in first if name not in second} == {
        "moet_prefill_computed_tokens_total",
        "moet_prefill_cached_tokens_total",
        "moet_prefill_recomputed_tokens_total",
        "moet_prefill_requests",
        "moet_prefill_remaining_tokens",
    }


def test_the_corrections_counts_are_reported(server, here, tmp_path: Path) -> None:
    worker, steps = server
    worker.compile_or_warm_up_model()
    full_pack(tmp_path / "store").close()
    tier = here.correction = Correction(plan(W2Config(), 3), KEY, tmp_path / "store", 2, "lru", True, CPU)
    facts = Facts(here, steps, 0, 1)
    assert facts.look(0.0).values["moet_correction_active"] == 0
    tier.start()
    manager = tier.manager
    manager._guarded(lambda: 1 / 0)
    window = torch.zeros(3, TINY.experts, dtype=torch.int64).numpy()
    window[0, 1] = 5
    manager.run_pass(window)
    values = facts.look(0.0).values
    assert values["moet_correction_active"] == 1 and values["moet_correction_slots"] == 2
    assert values["moet_correction_pool_bytes"] == 2 * KEY.geometry.correction_row_bytes
    assert values["moet_correction_routings_total"] == 5 and values["moet_correction_hits_total"] == 0
    assert values["moet_correction_failed_passes_total"] == 1
    assert facts.look(0.0).info["policy"] == "lru"
    manager._windows.put(None)  # a thread that has ended
    manager._thread.join()
    assert facts.look(0.0).values["moet_correction_active"] == 0
    tier.close()


def test_without_an_api_process_nothing_is_reported(here, monkeypatch) -> None:
    monkeypatch.delenv(folder.VARIABLE, raising=False)
    assert attach.report(SimpleNamespace(rank=0), Steps(), folder.of_process()) is None


# ---- gates


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda entry: entry[0].__setitem__("redundant_bytes", 5), "redundant GPU W2 bytes: 5, expected 0"),
        (lambda entry: entry.pop(1), "W2 layers: 1, expected 2"),
        (lambda entry: entry[1]["host"].__setitem__("uva_equal", False), "the device's pointer is not the host's"),
        (
            lambda entry: entry[1]["host"].update(pages_by_node={"0": 1, "1": 2}, pages_note="moved"),
            "layer 1: pages on several nodes",
        ),
    ],
)
def test_a_server_whose_audit_does_not_hold_never_becomes_ready(here, server, caplog, spoil, named: str) -> None:
    worker, steps = server
    spoil(here.audit._layers)
    with pytest.raises(AuditError) as failure:
        worker.compile_or_warm_up_model()
    assert named in str(failure.value) and "\n" not in str(failure.value)
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [named in record.getMessage() for record in told] == [True]
    assert not steps.active and audit.load(here.audit.path)["state"] == "refused"


def test_a_kv_cache_below_the_admission_never_becomes_ready(here, server, monkeypatch) -> None:
    monkeypatch.setattr(serving, "kv_cache_tokens", lambda worker, config: 63)
    with pytest.raises(AuditError, match="the KV cache holds 63 tokens, 64 are admitted"):
        server[0].compile_or_warm_up_model()


@pytest.mark.parametrize("missing", ["execute_model", "compile_or_warm_up_model", "initialize_from_config"])
def test_a_worker_that_is_not_the_pinned_vllms_is_refused(here, monkeypatch, missing: str) -> None:
    kind = worker_class()
    names = ("determine_available_memory", "initialize_from_config", "execute_model", "compile_or_warm_up_model")
    kind = type("Worker", (), {name: vars(kind.__mro__[1])[name] for name in names if name != missing})
    monkeypatch.setattr(attach, "resolve_obj_by_qualname", lambda name: kind)
    with pytest.raises(UnsupportedError, match="not the (one of the )?pinned"):
        attach.attach(here, engine(), None, 0, 1)


# ---- what vLLM decided


def test_the_capacity_is_the_one_that_vllm_logs() -> None:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)])
    vllm_config = engine(
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    worker = SimpleNamespace(model_runner=SimpleNamespace(kv_cache_config=config))
    tokens = serving.kv_cache_tokens(worker, vllm_config)
    assert tokens == get_kv_cache_capacity(vllm_config, config)[0] > 0
    assert serving.kv_cache_tokens(SimpleNamespace(model_runner=SimpleNamespace()), vllm_config) is None


def test_speculation_graphs_and_backends_are_named(monkeypatch) -> None:
    from vllm.config import CUDAGraphMode

    def backend(name: str):
        return SimpleNamespace(backend=SimpleNamespace(get_name=lambda: name))

    class Nameless:
        pass

    runner = SimpleNamespace(
        cudagraph_manager=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE),
        attn_groups=[[backend("B"), backend("A")], [backend("B"), SimpleNamespace(backend=Nameless)]],
        speculator=SimpleNamespace(attn_groups=[[backend("DRAFT")]]),
    )
    speculative = SimpleNamespace(method="dspark", num_speculative_tokens=4)
    worker, config = SimpleNamespace(model_runner=runner), engine(speculative_config=speculative)
    found = serving.describe(worker, config, None, CPU, 16)
    assert found["speculative"] == {"method": "dspark", "tokens": 4}
    assert found["graph_mode"] == "FULL_AND_PIECEWISE"
    assert found["attention_backends"] == ["A", "B", "DRAFT", "Nameless"]
    assert found["expert_kernels"] == "torch reference" and found["profile"] is None
    bare = serving.describe(SimpleNamespace(model_runner=SimpleNamespace()), engine(), "x", CPU, 16)
    assert (bare["graph_mode"], bare["speculative"], bare["attention_backends"]) == ("NONE", None, [])


def test_the_architecture_of_the_cubins_is_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for arch in ("sm_80", "sm_90a"):
        (tmp_path / "cubins" / arch).mkdir(parents=True)
        (tmp_path / "cubins" / arch / "decode.cubin").touch()
    assert serving.expert_kernels(torch.device("cuda", 0), tmp_path) == "cubins sm_90a"
    assert serving.expert_kernels(torch.device("cuda", 0)) == "cubins sm_90a"  # of those that are shipped
