"""Steps as vLLM's scheduler hands them over, and a worker of the pinned vLLM's shape, for the tests of metrics."""

from __future__ import annotations

from types import SimpleNamespace

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def request(name: str, tokens: int, cached: int = 0) -> NewRequestData:
    """A request that is scheduled for the first time."""
    ids = list(range(tokens))
    return NewRequestData(
        req_id=name,
        prompt_token_ids=ids,
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        block_ids=([],),
        num_computed_tokens=cached,
        lora_request=None,
        prefill_token_ids=ids,
    )


def step(scheduled: dict[str, int], new=(), finished=(), preempted=()) -> SchedulerOutput:
    """One step: tokens for each request, requests that are new, and those that ended before it."""
    names = {entry.req_id for entry in new}
    old = [name for name in scheduled if name not in names]
    cached = CachedRequestData(
        req_ids=old,
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None] * len(old),
        num_computed_tokens=[0] * len(old),
        num_output_tokens=[0] * len(old),
    )
    return SchedulerOutput(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=set(finished),
        free_encoder_mm_hashes=[],
        preempted_req_ids=set(preempted),
    )


def engine(**changes) -> SimpleNamespace:
    """What :mod:`moet_w2.metrics` reads of vLLM's configuration."""
    parts = {
        "model_config": SimpleNamespace(max_model_len=64, hf_config=SimpleNamespace(num_experts_per_tok=2)),
        "cache_config": SimpleNamespace(
            cache_dtype="fp8", block_size=16, enable_prefix_caching=True, gpu_memory_utilization=0.9
        ),
        "scheduler_config": SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=32),
        "compilation_config": SimpleNamespace(cudagraph_mode=None),
        "speculative_config": None,
        "parallel_config": SimpleNamespace(worker_cls="metrics_support.Worker"),
    }
    return SimpleNamespace(**(parts | changes))


class Worker:
    """A stand-in for vLLM's worker class, found by its name. Tests hook into copies: see :func:`worker_class`."""

    model_runner = SimpleNamespace()

    def determine_available_memory(self) -> int:
        return 42

    def initialize_from_config(self, kv_cache_config: object) -> None:
        return None

    def execute_model(self, scheduler_output: SchedulerOutput) -> SchedulerOutput:
        return scheduler_output

    def compile_or_warm_up_model(self) -> str:
        self.execute_model(step({"warm-up": 7}, new=[request("warm-up", 9)]))
        return "warm"


def worker_class() -> type:
    """A fresh class, so that hooks of one test stay with it."""
    return type("Worker", (Worker,), {})
