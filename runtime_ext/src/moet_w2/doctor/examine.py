"""All checks, in the order in which a person would want to know."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import launch_checks, placement
from ..command import Command
from ..config import W2Config
from ..recipe import Recipe
from . import gpus, launch, memory, nvml, software, storage
from .report import Check, Report, made, skipped
from .subject import Subject


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
    checks = [
        *made("versions", lambda: software.check_versions(subject)),
        *made("GPU", lambda: gpus.check(subject)),
        *made("nvcc", lambda: software.check_compilers(subject)),
    ]
    checks += _machine(subject) if recipe is None else _recipe(subject)
    about = "this machine" if recipe is None else recipe.name
    return Report(tuple(checks), time.perf_counter() - start, about)


def _machine(subject: Subject) -> list[Check]:
    homes: list[Any] = []

    def node() -> list[Check]:
        homes.extend(memory.localities(subject, None))
        return list(memory.check_node(subject, homes))

    return [
        *made("NUMA node", node),
        *made("host memory", lambda: memory.check_limits(subject, None, homes)),
        skipped("checkpoint, cache, disk, port", "no recipe was given; moet doctor --recipe FILE looks at them"),
    ]


def _recipe(subject: Subject) -> list[Check]:
    """Each later check needs what earlier ones found; where those failed it is skipped and says so."""
    recipe, command, environ = subject.recipe, subject.command, subject.environ
    settings: list[W2Config] = []
    reports: list[Any] = []
    homes: list[Any] = []

    def look_at_settings() -> Check:
        settings.append(launch_checks.check_settings(command, environ))
        return launch.check_settings(subject)

    def look_at_checkpoint() -> Check:
        launch_checks.check_model_folder(command.model_path)
        reports.append(launch_checks.check_checkpoint(recipe, command, environ))
        return launch.check_checkpoint(subject, reports[0])

    def look_at_node() -> list[Check]:
        homes.extend(memory.localities(subject, settings[0]))
        return list(memory.check_node(subject, homes))

    checks = [
        *made("options", lambda: launch.check_refusals(subject)),
        *made("settings", look_at_settings),
        *made("checkpoint", look_at_checkpoint),
    ]
    if not (settings and reports):
        why = "settings and checkpoint must hold first"
        checks += [skipped(thing, why) for thing in ("NUMA node", "host memory", "planes cache", "disk space")]
    else:
        report, chosen = reports[0], settings[0]
        needed = memory.need(subject, chosen, report)
        if needed.locked:
            checks += made("NUMA node", look_at_node)
        else:
            checks.append(skipped("NUMA node", "not applicable: the recipe maps no layer"))
        checks += made("host memory", lambda: memory.check_limits(subject, needed, homes))
        checks += made("GPU weights", lambda: gpus.check_weights(subject, chosen, report))
        drafts = recipe.expect.w2_layers - report.target_layers
        checks += made(
            "planes cache",
            lambda: storage.check(subject, chosen, report, placement.plan(chosen, report.target_layers, drafts)),
        )
    return [
        *checks,
        *made("port", lambda: launch.check_port(subject)),
        *made("files", lambda: launch.check_files(subject)),
    ]
