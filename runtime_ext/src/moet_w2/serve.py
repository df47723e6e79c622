"""``moet serve``: check everything that can be checked before a model is loaded, then become ``vllm serve``.

The checks run in a fixed order and the first that fails ends in one line and exit code 2, so that no server
starts which could not have served what its recipe says. This module reads the launcher's own variables (in
``_overrides``) and hands the environment on to the server; settings of the server are read by ``envs`` alone.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import checkpoint, command, config, envs, placement, preflight, served
from .cache import phases
from .errors import CheckpointError, ConfigError, MoetError, RecipeError
from .recipe import Recipe, load

EXIT_BAD_INPUT = 2

OVERRIDES_HELP = """environment variables that override the recipe:
  MODEL_PATH          folder of the checkpoint
  SERVED_MODEL_NAME   name under which the API serves it
  HOST, PORT          where the API listens (default 127.0.0.1:8000)
  W2_AUDIT_PATH       file that receives the audit
  CACHE_ROOT          folder under which every compiler at run time keeps its cache
  MOET_PLANES_CACHE_DIR, MOET_STORE_DIR
                      folders of ready planes and of the correction pack: the first start fills them, later ones
                      read them (adds --load-format moet; not with --stock)
  VLLM_API_KEY        key that clients must send; never printed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = OVERRIDES_HELP
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="what to serve (YAML)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where the recipe's relative paths start")
    parser.add_argument("--stock", action="store_true", help="vLLM's own experts instead of W2, all else equal")
    parser.add_argument("--dry-run", action="store_true", help="print the command; look at nothing else")
    parser.add_argument("--print", choices=("shell", "json"), default="shell", help="form of the command")


def run(args: argparse.Namespace) -> int:
    """Serve a recipe. Does not return when the server starts: this process becomes it.

    Returns:
        0 after a dry run, 2 when something is wrong (one line on stderr says what).
    """
    try:
        recipe = load(args.recipe, args.root)
        program = Path(sys.executable).with_name("vllm")
        rendered = command.render(recipe, _overrides(os.environ), stock=args.stock, program=str(program))
        if not args.dry_run:
            check(recipe, rendered, os.environ)
            if not program.is_file():
                raise ConfigError(f"{program} does not exist; set up the serving environment with: make setup")
        document = json.dumps(rendered.document(), indent=2)
        print(document if args.print == "json" else rendered.shell(), flush=True)
        if args.dry_run:
            return 0
        if not _is_local(rendered.host) and not os.environ.get("VLLM_API_KEY"):
            print(f"moet: note: {rendered.host} is open to the network without VLLM_API_KEY", file=sys.stderr)
        served.write(recipe, rendered)
    except MoetError as error:
        print(f"moet: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    os.execvpe(rendered.argv[0], rendered.argv, {**os.environ, **rendered.env})


def check(recipe: Recipe, rendered: command.Command, environ: Mapping[str, str]) -> None:
    """Everything that must hold before the server may start.

    Raises:
        MoetError: the first thing that does not hold.
    """
    if not rendered.model_path.is_dir():
        folder = rendered.model_path
        what = "is no folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"model folder {folder} {what}; set MODEL_PATH to the checkpoint's folder")
    report = _check_checkpoint(recipe, rendered, environ)
    settings = _check_settings(recipe, rendered, environ)
    if settings.enabled and settings.mapped_layers:
        # The node is the worker's to find; what the process may lock at all shows here.
        preflight.check(len(settings.mapped_layers) * report.geometry.nbytes, None)
    _check_port(rendered.host, rendered.port)
    if rendered.audit_path is not None:
        _prepare_audit(rendered.audit_path)


def _overrides(environ: Mapping[str, str]) -> command.Overrides:
    """The launcher's own variables; the only place that reads them (``envs`` reads those of the server)."""
    port = environ.get("PORT") or str(command.DEFAULT_PORT)
    if not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"PORT={port!r} is not a port; use a number from 1 to 65535")

    def path(name: str) -> Path | None:
        return Path(environ[name]) if environ.get(name) else None

    return command.Overrides(
        model_path=path("MODEL_PATH"),
        served_model_name=environ.get("SERVED_MODEL_NAME") or None,
        host=environ.get("HOST") or command.DEFAULT_HOST,
        port=int(port),
        audit_path=path("W2_AUDIT_PATH"),
        cache_root=path("CACHE_ROOT"),
        store_dir=path("MOET_STORE_DIR"),
        planes_cache_dir=path("MOET_PLANES_CACHE_DIR"),
    )


def _check_checkpoint(
    recipe: Recipe, rendered: command.Command, environ: Mapping[str, str]
) -> checkpoint.CheckpointReport:
    report = checkpoint.inspect(rendered.model_path)
    wanted = recipe.model.geometry
    if wanted is not None and report.geometry != wanted.layer:
        raise RecipeError(f"{recipe.file}: model.geometry is {wanted.layer}, but {report.path} has {report.geometry}")
    # Keys and counts against this very checkpoint: the recipe could only hold them against each other.
    drafts = report.draft_layers if "speculative-config" in recipe.engine else 0
    placement.plan(config.parse(envs.read({**environ, **rendered.env})), report.target_layers, drafts)
    layers = report.target_layers + drafts
    if recipe.expect.w2_layers != layers:
        raise RecipeError(
            f"{recipe.file}: expect.w2_layers = {recipe.expect.w2_layers}, but {report.path} has "
            f"{report.target_layers} target layers and {drafts} draft layers that this recipe serves"
        )
    return report


def _check_settings(recipe: Recipe, rendered: command.Command, environ: Mapping[str, str]) -> config.W2Config:
    """Unknown settings, malformed ones, and exported ones that the recipe would silently replace."""
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
    for folder in (settings.planes_cache, settings.store_dir):
        if folder is not None:
            _prepare_folder(folder)
    return settings


def _prepare_folder(folder: Path) -> None:
    """A folder that cannot be written is the server's to report, and may still be read; one that is none is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not folder.is_dir():
            raise ConfigError(
                f"folder {folder} cannot be made ({error.strerror}); set MOET_PLANES_CACHE_DIR or MOET_STORE_DIR"
            ) from None


def _check_port(host: str, port: int) -> None:
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


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _prepare_audit(path: Path) -> None:
    """Prove that the audit can be written, and take away an old one that could pass for the new."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        path.unlink(missing_ok=True)
        path.with_suffix(phases.SUFFIX).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"audit {path} cannot be written ({error.strerror}); set W2_AUDIT_PATH") from None
