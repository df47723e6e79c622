"""``moet serve``: check everything that can be checked before a model is loaded, then become ``vllm serve``.

The checks are those of ``moet doctor``. Each that fails is one line, and then no server starts (exit code 2): none
that could not have served what its recipe says. The launcher's own variables are read by ``overrides``, settings of
the server by ``envs``; the environment is handed on to the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import api_key, audit_ranks, command, doctor, envs, overrides, served
from .errors import ConfigError, MoetError
from .recipe import Recipe, load

EXIT_BAD_INPUT = 2

OVERRIDES_HELP = """environment variables that override the recipe:
  MODEL_PATH          folder of the checkpoint
  SERVED_MODEL_NAME   name under which the API serves it
  HOST, PORT          where the API listens (default 127.0.0.1:8000)
  CUDA_VISIBLE_DEVICES
                      the GPU that serves
  W2_AUDIT_PATH       file that receives the audit
  CACHE_ROOT          folder below which a server keeps what it builds (default ~/.cache/moet, or moet in
                      XDG_CACHE_HOME): jit/ of every compiler, planes/ and store/; on a CPU only where it is given
  MOET_PLANES_CACHE_DIR, MOET_STORE_DIR
                      folders of ready planes and of the correction pack: the first start fills them, later ones
                      read them (adds --load-format moet; not with --stock)
  VLLM_API_KEY        key that clients must send; never printed. /health, /ping and /metrics stay open
layers, geometry and limits belong to the recipe and have no variable

exit status: 0 after --dry-run, also where a check would refuse the start; 2 where something is wrong; otherwise that
of the server"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = OVERRIDES_HELP
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="what to serve (YAML)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where the recipe's relative paths start")
    parser.add_argument("--stock", action="store_true", help="vLLM's own experts instead of W2, all else equal")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command and start nothing; name checks that refuse it"
    )
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="file that holds the key, for VLLM_API_KEY")
    parser.add_argument("--print", choices=("shell", "json"), default="shell", help="form of the command")


def run(args: argparse.Namespace) -> int:
    """Serve a recipe. Does not return when the server starts: this process becomes it.

    Returns:
        0 after a dry run, 2 when something is wrong (lines on stderr say what).
    """
    try:
        recipe = load(args.recipe, args.root)
        program = Path(sys.executable).with_name("vllm")
        inherited = {**os.environ, **api_key.environment(args.api_key_file, os.environ)}
        here = overrides.read(inherited)
        rendered = command.render(recipe, here, stock=args.stock, program=str(program))
        if not args.dry_run:
            if not fit(recipe, rendered, inherited):
                return EXIT_BAD_INPUT
            prepare(rendered)
        document = json.dumps(rendered.document(), indent=2)
        print(document if args.print == "json" else rendered.shell(), flush=True)
        if args.dry_run:
            note_refusals(args, doctor.examine(recipe, rendered, inherited))
            return 0
        served.write(recipe, rendered)
    except MoetError as error:
        print(f"moet: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    os.execvpe(rendered.argv[0], rendered.argv, {**inherited, **rendered.env})


def note_refusals(args: argparse.Namespace, report: doctor.Report) -> None:
    """One line on stderr with the checks that would refuse the start of a command that was only printed, if any."""
    failed = dict.fromkeys(check.thing for check in report.checks if check.status is doctor.Status.FAIL)
    if failed:
        where = ["--recipe", str(args.recipe), *(["--root", str(args.root)] if args.root else [])]
        ask = shlex.join(["moet", "doctor", *where, *(["--stock"] if args.stock else [])])
        print(f"moet: note: this start would be refused by: {', '.join(failed)}; why: {ask}", file=sys.stderr)


def fit(recipe: Recipe, rendered: command.Command, environ: Mapping[str, str]) -> bool:
    """Whether the doctor lets a server start; a line on stderr for each of its findings that a person must know."""
    report = doctor.examine(recipe, rendered, environ)
    words = {doctor.Status.FAIL: "error", doctor.Status.WARN: "note"}
    told: set[str] = set()  # a setting that does not parse stands in the way of every check that needs it
    for check in report.checks:
        if check.status in words and check.value not in told:
            told.add(check.value)
            what = check.value if check.value.startswith(check.thing) else f"{check.thing}: {check.value}"
            print(f"moet: {words[check.status]}: {'; '.join(filter(None, (what, check.remedy)))}", file=sys.stderr)
    if report.failed:
        return False
    for name, value in rendered.env.items():
        # Settings that contradict the recipe have failed; these are what the launcher's own variables give others.
        if name not in envs.SETTINGS and environ.get(name, value) != value:
            print(f"moet: note: {name}={environ[name]!r} is exported, {value!r} is served with", file=sys.stderr)
    return True


def prepare(rendered: command.Command) -> None:
    """Make what the server will write to.

    Raises:
        ConfigError: a folder cannot be made, or the audit not be written.
    """
    for name in ("VLLM_MOE_W2_PLANES_CACHE", "VLLM_MOE_W2_STORE_DIR"):
        if name in rendered.env:
            _prepare_folder(Path(rendered.env[name]))
    if rendered.audit_path is not None:
        _prepare_audit(rendered.audit_path)


def _prepare_folder(folder: Path) -> None:
    """A folder that cannot be written is the server's to report, and may still be read; one that is none is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not folder.is_dir():
            raise ConfigError(
                f"folder {folder} cannot be made ({error.strerror}); set CACHE_ROOT, MOET_PLANES_CACHE_DIR or "
                "MOET_STORE_DIR"
            ) from None


def _prepare_audit(path: Path) -> None:
    """Prove that the audit can be written, and take away an old one that could pass for the new."""
    if (running := audit_ranks.owner(path)) is not None:
        raise ConfigError(
            f"audit {path} is that of a running server (process {running}); stop it, or set W2_AUDIT_PATH for this one"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        audit_ranks.remove(path)
    except OSError as error:
        raise ConfigError(f"audit {path} cannot be written ({error.strerror}); set W2_AUDIT_PATH") from None
