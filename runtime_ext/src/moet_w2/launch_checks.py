"""What must hold before a server may start, as far as a look without side effects can tell: one function a question.

Each raises the first thing that does not hold. ``moet serve`` and ``moet doctor`` ask the same functions.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from . import checkpoint, config, envs, placement
from .command import Command
from .errors import CheckpointError, ConfigError, RecipeError
from .official import DSPARK_LAYERS
from .recipe import Recipe

MADE_UP = (config.DUMMY_FORMAT, config.SYNTHETIC_FORMAT)
"""Load formats that read a checkpoint's config.json and nothing else of it."""


def check_model_folder(folder: Path) -> None:
    """Refuse a checkpoint folder that is none.

    Raises:
        CheckpointError: it does not exist, or is no folder.
    """
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"model folder {folder} {what}; set MODEL_PATH to the checkpoint's folder")


def check_checkpoint(recipe: Recipe, rendered: Command, environ: Mapping[str, str]) -> checkpoint.CheckpointReport:
    """Hold the checkpoint against the recipe: whole, of its geometry, with the layers that it names.

    Raises:
        CheckpointError: it is not whole, or not DeepSeek-V4 with MXFP4 experts.
        RecipeError, ConfigError: it is another one than the recipe is made for.
    """
    made_up = rendered.load_format in MADE_UP
    report = checkpoint.describe(rendered.model_path) if made_up else checkpoint.inspect(rendered.model_path)
    wanted = recipe.model.geometry
    if wanted is not None and report.geometry != wanted.layer:
        here, there = asdict(wanted.layer), asdict(report.geometry)
        other = [name for name in here if here[name] != there[name]]
        raise RecipeError(
            f"{recipe.file}: model.geometry has {_values(here, other)}, but {report.path} has {_values(there, other)}"
        )
    # Keys and counts against this very checkpoint: the recipe could only hold them against each other.
    drafts = 0
    if "speculative-config" in recipe.engine:
        drafts = _configured_drafts(report.path) if made_up else report.draft_layers
    placement.plan(config.parse(envs.read({**environ, **rendered.env})), report.target_layers, drafts)
    layers = report.target_layers + drafts
    if recipe.expect.w2_layers != layers:
        raise RecipeError(
            f"{recipe.file}: expect.w2_layers = {recipe.expect.w2_layers}, but {report.path} has "
            f"{report.target_layers} target layers and {drafts} draft layers that this recipe serves"
        )
    if "--skip-tokenizer-init" not in rendered.argv:
        checkpoint.check_tokenizer(rendered.model_path)
    return report


def _values(fields: Mapping[str, int], names: list[str]) -> str:
    return ", ".join(f"{name} = {fields[name]}" for name in names)


def _configured_drafts(folder: Path) -> int:
    """Draft layers that vLLM builds for DSpark by config.json (vllm/models/deepseek_v4/nvidia/dspark.py)."""
    return checkpoint.read_config(folder).get("n_mtp_layers") or DSPARK_LAYERS


def check_settings(rendered: Command, environ: Mapping[str, str]) -> config.W2Config:
    """Refuse unknown settings, malformed ones, and exported ones that the recipe would silently replace.

    Raises:
        ConfigError: one of these; the message names the variable, its value and the remedy.
    """
    envs.read(environ)  # unknown ones; what is exported may need what the launcher adds, so it is parsed with that
    for name, value in rendered.env.items():
        if name in envs.SETTINGS and environ.get(name, value) != value:
            remedy = {
                "VLLM_MOE_W2": "unset it; to serve without W2 use --stock",
                "VLLM_MOE_W2_MAPPED_AUDIT_PATH": "unset it and set W2_AUDIT_PATH",
                "VLLM_MOE_W2_STORE_DIR": "unset it: MOET_STORE_DIR names the folder",
                "VLLM_MOE_W2_PLANES_CACHE": "unset it: MOET_PLANES_CACHE_DIR names the folder",
            }.get(name, "unset it or change the recipe")
            raise ConfigError(f"{name}={environ[name]!r} contradicts the recipe's {value!r}; {remedy}")
    settings = config.parse(envs.read({**environ, **rendered.env}))
    try:
        config.check_load_format(settings, rendered.load_format)
    except ConfigError as error:
        raise ConfigError(f"{error} (with moet serve: set MOET_PLANES_CACHE_DIR, MOET_STORE_DIR instead)") from None
    return settings


def check_port(host: str, port: int) -> None:
    """Refuse an address that is not this machine's, and a port that somebody listens on.

    Raises:
        ConfigError: one of these, or the system does not allow it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"HOST={host!r} is not an address of this machine ({error})") from None
    with socket.socket(family, kind, protocol) as probe:
        # As vLLM binds: a port that only waits for its last connections to time out counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} on {host} is in use; stop what listens there or set PORT"
            else:
                message = f"cannot listen on port {port} of {host} ({error.strerror}); set HOST or PORT"
            raise ConfigError(message) from None
