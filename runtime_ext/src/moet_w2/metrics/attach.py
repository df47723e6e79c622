"""Hooks metrics and the audit of the start into a worker.

    every step                  Steps.note, before vLLM's execute_model
    compile_or_warm_up_model    is over: the audit is judged, told and written; then the reporter starts

A server becomes ready only after that call, so a broken audit ends the start.
"""

from __future__ import annotations

import logging
import time
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.utils.import_utils import resolve_obj_by_qualname

from .. import step_hook
from ..audit_summary import summary
from ..cache import phases
from ..errors import AuditError
from . import folder, serving
from .facts import Facts
from .prefill_log import PrefillLog
from .reporter import Reporter
from .steps import Steps

if TYPE_CHECKING:
    from ..runtime import W2Runtime

logger = logging.getLogger("vllm.moet_w2.audit")


def attach(here: W2Runtime, vllm_config: VllmConfig, profile: str | None, rank: int, size: int) -> Steps:
    """Hook into the worker class that vLLM uses; once for a process.

    Args:
        here: what the worker knows of its layers; they need not be there yet.
        vllm_config: the configuration of the engine.
        profile: name of what is served, or None.
        rank, size: which of how many workers this is.

    Returns:
        the counts that the steps will fill.

    Raises:
        UnsupportedError: the worker is not the pinned vLLM's.
    """
    worker_class = resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls)
    steps, block_size = Steps(), vllm_config.cache_config.block_size
    # Where our loader has not: phases of a start are measured for every load format.
    phases.attach(worker_class, phases.of_process(), lambda: None, lambda: None)
    step_hook.before(worker_class, "execute_model", "scheduler_output", lambda worker, output: steps.note(output))

    def could_serve(worker: Any) -> None:
        if steps.active:
            return
        found = serving.describe(worker, vllm_config, profile, here.device, block_size)
        judge(here, found)
        if here.reads is not None:
            here.reads.begin()
        steps.active = True
        report(Facts(here, steps, rank, size), steps, folder.of_process())

    step_hook.after(worker_class, "compile_or_warm_up_model", could_serve)
    return steps


def judge(here: W2Runtime, found: dict[str, Any]) -> None:
    """Hold the audit against its rules, write it, and tell it.

    Raises:
        AuditError: a rule is broken; the same line is in the log, since vLLM wraps what a worker raises.
    """
    try:
        here.audit.started(found)
    except AuditError as error:
        logger.error("moet audit: %s", error)
        raise
    logger.info("moet audit: the server may become ready\n%s", summary(here.audit.document()))


def report(facts: Facts, steps: Steps, place: Path | None) -> Reporter | None:
    """Start the reporter where the API process has named a folder; a library that runs without one has no /metrics."""
    if place is None:
        return None
    log = PrefillLog()
    also = (lambda: log.look(steps)) if facts.rank == 0 else (lambda: None)
    reporter = Reporter(place, lambda: facts.look(time.time()), also)
    reporter.start()
    Finalize(None, reporter.close, exitpriority=1)
    return reporter
