"""The extension as an installed package, without an installer: for a GPU host that has no network and no pip.

    python3 bench/gpu_site.py FOLDER [--vllm SITE]
    . FOLDER/env.sh
    FOLDER/bin/moet serve --recipe ...

vLLM finds plugins by the entry points of installed distributions, so a source path alone is not enough. FOLDER gets
a link to the package, the metadata that an installer would write from runtime_ext/pyproject.toml, and in bin/ the
commands ``python3``, ``moet`` and ``vllm``. ``env.sh`` puts FOLDER in front of PYTHONPATH and bin/ in front of PATH,
and points every compiler's cache below CACHE_ROOT (default FOLDER/cache), where ``moet serve`` has them too: whatever
is run after sourcing it shares what was compiled. With ``--vllm`` the patches of patch/series are applied to the vLLM
that lies unpacked in SITE; one that is there already is left alone.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "runtime_ext"
COMMANDS = {"moet": "moet_w2.cli", "vllm": "vllm.entrypoints.cli.main"}


def make(folder: Path) -> Path:
    """Write the site folder, or write it again.

    Returns:
        its absolute path.
    """
    project = tomllib.loads((EXTENSION / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "moet_w2"
    link.unlink(missing_ok=True)
    link.symlink_to(EXTENSION / "src" / "moet_w2")
    info = folder / f"{name}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    _make_commands(folder.resolve())
    (folder / "env.sh").write_text(environment(folder.resolve()))
    return folder.resolve()


def environment(folder: Path) -> str:
    """What env.sh holds."""
    place = shlex.quote(str(folder))
    # bin/python3 stands outside of a virtual environment that made it, and would not look into that.
    inside = sys.prefix != sys.base_prefix
    packages = "".join(f":{shlex.quote(path)}" for path in site.getsitepackages() if inside)
    lines = [
        f'export PYTHONPATH={place}"${{PYTHONPATH:+:$PYTHONPATH}}"{packages} PATH={place}/bin:"$PATH"',
        f'export CACHE_ROOT="${{CACHE_ROOT:-{folder}/cache}}" VLLM_USE_BREAKABLE_CUDAGRAPH=1',
    ]
    lines += [f'export {name}="$CACHE_ROOT/jit/{below}"' for name, below in _jit_caches().items()]
    return "\n".join(lines) + "\n"


def patch(unpacked: Path) -> list[str]:
    """Apply the series to an unpacked vLLM.

    Args:
        unpacked: the folder that holds ``vllm``.

    Returns:
        names of the patches that were not there yet.

    Raises:
        SystemExit: one does not apply.
    """
    applied = []
    for file in sorted((ROOT / "patch" / "series").glob("*.patch")):
        if _try(unpacked, file, "--reverse", check=True):
            continue
        if not _try(unpacked, file):
            raise SystemExit(f"{file.name} does not apply to {unpacked}/vllm; unpack the pinned vLLM again")
        applied.append(file.name)
    return applied


def _try(unpacked: Path, file: Path, *options: str, check: bool = False) -> bool:
    if shutil.which("patch"):
        command = ["patch", "-p1", "--batch", "--force", "--silent", *options, *(["--dry-run"] if check else [])]
        command += ["--reject-file=-", "--no-backup-if-mismatch", "--input", str(file)]
    else:
        command = ["git", "apply", "-p1", *options, *(["--check"] if check else []), str(file)]
    return subprocess.run(command, cwd=unpacked, capture_output=True, check=False).returncode == 0


def _make_commands(folder: Path) -> None:
    """An interpreter whose neighbours are the commands, as in a virtual environment: ``moet serve`` looks there."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    interpreter = place / "python3"
    interpreter.unlink(missing_ok=True)
    interpreter.symlink_to(Path(sys.executable).resolve())
    for name, module in COMMANDS.items():
        command = place / name
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(interpreter))} -m {module} "$@"\n')
        command.chmod(0o755)


def _jit_caches() -> dict[str, str]:
    """Variable of each compiler's cache, and its folder; from the extension, which needs no package to say so."""
    source = (EXTENSION / "src" / "moet_w2" / "cache_root.py").read_text()
    found = [line.split('"') for line in source.splitlines() if line.strip().startswith('JitCache("')]
    return {parts[1]: parts[3] for parts in found}


def main() -> None:
    parser = argparse.ArgumentParser(description="the extension as an installed package, without an installer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vllm", type=Path, metavar="SITE", help="folder with an unpacked vLLM, to be patched")
    args = parser.parse_args()
    if args.vllm is not None:
        for name in patch(args.vllm):
            print(f"applied {name}", file=sys.stderr)
    print(make(args.folder))


if __name__ == "__main__":
    main()
