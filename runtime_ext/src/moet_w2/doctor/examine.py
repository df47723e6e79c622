"""All checks, in the order in which a person would want to know."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import launch_checks, placement
from ..command import Command
from ..config import W2Config
from ..recipe import Recipe
from . import gpus, launch, longest_prompt, memory, nvml, software, storage
from .report import Check, Report, Status, made, skipped
from .subject import Subject

_NODE = "name the node by VLLM_MOE_W2_MAPPED_NUMA_NODE, or map no layers"
_MEMORY = "give the process more memory, or map fewer layers"


def examine(
    recipe: Recipe | None,
    command: Command | None,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    library: Any = None,
) -> Report:
    """Look at this machine, for a recipe or for none.

    Args:
        recipe: what is to be served.
        command: the recipe rendered for this machine; None exactly where ``recipe`` is.
        environ: the environment that the server would inherit (default: this process's).
        root: where /proc and /sys are.
        library: what stands for pynvml in tests.

    Returns:
        every finding; nothing is raised that a user can mend, nothing is written.
    """
    start = time.perf_counter()
    subject = Subject(recipe, command, os.environ if environ is None else environ, nvml.read(library), root)
    versions = made("versions", lambda: software.check_versions(subject), "install the distribution again")
    for_gpu = [
        *made("GPU", lambda: gpus.check(subject), "serve on another GPU"),
        *made("nvcc", lambda: software.check_compilers(subject), "install the CUDA toolkit again"),
    ]
    if recipe is None:
        # Nothing was asked for yet: what stands in the way of some recipes is no fault of the machine.
        checks = versions + [_forgiven(check) for check in [*for_gpu, *_machine(subject)]]
    else:
        checks = [*versions, *for_gpu, *_recipe(subject)]
    about = "this machine" if recipe is None else recipe.name
    return Report(tuple(checks), time.perf_counter() - start, about)


def _forgiven(check: Check) -> Check:
    return replace(check, status=Status.WARN) if check.status is Status.FAIL else check


def _machine(subject: Subject) -> list[Check]:
    homes: list[Any] = []

    def node() -> list[Check]:
        homes.extend(memory.localities(subject, None))
        return list(memory.check_node(subject, homes))

    return [
        *made("NUMA node", node, _NODE),
        *made("host memory", lambda: memory.check_limits(subject, None, homes), _MEMORY),
        skipped("checkpoint, cache, disk, port", "no recipe was given; moet doctor --recipe FILE looks at them"),
    ]


def _recipe(subject: Subject) -> list[Check]:
    """Each later check needs what earlier ones found; where those failed it is skipped and says so."""
    recipe, command, environ = subject.recipe, subject.command, subject.environ
    settings: list[W2Config] = []
    reports: list[Any] = []
    homes: list[Any] = []

    def look_at_settings() -> Iterator[Check]:
        settings.append(launch_checks.check_settings(command, environ))
        yield from launch.check_settings(subject)
        if subject.w2:
            yield from launch.check_effects(subject, settings[0])

    def look_at_checkpoint() -> Check:
        launch_checks.check_model_folder(command.model_path)
        if command.load_format not in launch_checks.MADE_UP:
            launch.look_for_shards(command.model_path)
        reports.append(launch_checks.check_checkpoint(recipe, command, environ))
        return launch.check_checkpoint(subject, reports[0])

    def look_at_node() -> list[Check]:
        homes.extend(memory.localities(subject, settings[0]))
        return list(memory.check_node(subject, homes))

    checks = [
        *made("options", lambda: launch.check_refusals(subject), "correct the recipe"),
        *made("settings", look_at_settings, "correct the setting or unset it"),
        *made("checkpoint", look_at_checkpoint, "set MODEL_PATH to the checkpoint that the recipe is made for"),
    ]
    if settings and reports:
        report, chosen = reports[0], settings[0]
        needed = memory.need(subject, chosen, report)
        if needed.locked:
            checks += made("NUMA node", look_at_node, _NODE)
        else:
            checks.append(skipped("NUMA node", "not applicable: no layer is mapped"))
        plan = placement.plan(chosen, report.target_layers, recipe.expect.w2_layers - report.target_layers)
        checks += made("host memory", lambda: memory.check_limits(subject, needed, homes), _MEMORY)
        checks += made("GPU weights", lambda: gpus.check_weights(subject, chosen, report), "map more layers")
        checks += made(longest_prompt.THING, lambda: longest_prompt.check(subject), "lower gpu-memory-utilization")
        checks += made("folders", lambda: storage.check(subject, chosen, report, plan), "name other folders")
    else:
        checks.append(skipped("memory, folders, disk space", "settings and checkpoint must hold first"))
    checks += made("JIT caches", lambda: storage.check_jit(subject), "set CACHE_ROOT to a folder that can be written")
    checks += made("port", lambda: launch.check_port(subject), "set HOST or PORT")
    checks += made("program", lambda: launch.check_program(subject), "make it readable")
    if (audit := subject.command.audit_path) is not None:
        checks += made("audit", lambda: launch.check_audit(audit), "set W2_AUDIT_PATH")
    return checks
