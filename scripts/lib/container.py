"""Entry of scripts/container.sh: the commands of docker or podman that build the image and run it.

Mapped layers are locked in host memory, and an engine's default limit is a few pages: `run` lifts it. On a machine with
several NUMA nodes they are also bound to the GPU's node (mbind) and proven to lie there (move_pages). The default
seccomp profiles of docker and podman allow the first only with CAP_SYS_NICE and the second never, so such a machine
needs --seccomp FILE, which scripts/seccomp-profile.sh writes; no capability is needed then. With one node nothing is
bound, serving goes on without that proof, and the audit says that pages were not asked.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pins as pin_table
import seccomp_profile
from build_errors import MISSING, OK, USAGE, BuildError

ENGINES = ("docker", "podman")


def image(pins: pin_table.Pins, name: str) -> str:
    """A base image of the pins, by digest if it has one; says so if it has not."""
    found, digest = pins.get(f"container.{name}.image"), pins.get(f"container.{name}.digest")
    if not digest:
        note = f"{found} is pinned by its tag alone; container.{name}.digest in {pins.source.name} is empty"
        print(f"container: {note}", file=sys.stderr)
        return found
    return f"{found}@{digest}"


def tag(pins: pin_table.Pins) -> str:
    """What the built image is called."""
    return f"moet-w2:{pins.get('vllm.version')}-{pins.get('project.revision')}"


def find_engine(environ: Mapping[str, str], *, needed: bool) -> str:
    """CONTAINER_ENGINE, docker or podman, whichever is there. Raises BuildError if none is and one is `needed`."""
    named = environ.get("CONTAINER_ENGINE")
    for name in (named,) if named else ENGINES:
        if shutil.which(name) or not needed:
            return name
    raise BuildError(f"{named or ' or '.join(ENGINES)} is not on PATH; install it, or set CONTAINER_ENGINE", MISSING)


def numa_nodes(nodes: Path = Path("/sys/devices/system/node")) -> int:
    """How many this machine has."""
    return sum(1 for path in nodes.glob("node[0-9]*"))


def revision(root: Path) -> str:
    """Of the tree, for the image's label; `unknown` outside a checkout."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def build_command(pins: pin_table.Pins, engine: str) -> list[str]:
    """Builds the image of this tree."""
    root = pins.source.parent
    command = [engine, "build", "--file", str(root / "Containerfile"), "--tag", tag(pins)]
    for name, value in (
        ("BASE", image(pins, "base")),
        ("TOOLKIT", image(pins, "toolkit")),
        ("REVISION", revision(root)),
    ):
        command += ["--build-arg", f"{name}={value}"]
    return [*command, str(root)]


def run_command(
    pins: pin_table.Pins, engine: str, options: argparse.Namespace, server: list[str], environ: Mapping[str, str]
) -> list[str]:
    """Serves from the image, in the foreground. `server` are options of scripts/serve-pro6000-ds4flash.sh.

    Raises BuildError for a folder or file that is not there, of which an engine would make an empty folder, and for a
    seccomp profile that is none: an engine says of that what its JSON parser said.
    """
    for folder in (options.checkpoint, options.cache):
        if not folder.is_dir():
            raise BuildError(f"{folder} is no folder; name one of this host", USAGE)
    if options.seccomp and not options.seccomp.is_file():
        raise BuildError(f"--seccomp {options.seccomp} is no file; scripts/seccomp-profile.sh writes one", USAGE)
    if options.seccomp:
        seccomp_profile.read(options.seccomp)
    flags = ["--rm", "--init", "--ulimit", "memlock=-1"]
    if options.seccomp:
        flags += ["--security-opt", f"seccomp={options.seccomp.absolute()}"]
    elif (count := numa_nodes()) > 1:
        print(f"container: {count} NUMA nodes: layers are mapped only with --seccomp FILE", file=sys.stderr)
    flags += ["--device", "nvidia.com/gpu=all"] if Path(engine).name == "podman" else ["--gpus", "all"]
    flags += ["--volume", f"{options.checkpoint.absolute()}:/models/checkpoint:ro"]
    flags += ["--volume", f"{options.cache.absolute()}:/var/cache/moet"]
    flags += ["--publish", f"127.0.0.1:{options.port}:8000"]
    if environ.get("VLLM_API_KEY"):
        flags += ["--env", "VLLM_API_KEY"]  # by name: its value stands in no list of processes
    return [engine, "run", *flags, tag(pins), *server]


def parser() -> argparse.ArgumentParser:
    """Of the words before `--`."""
    made = argparse.ArgumentParser(
        prog="container.sh",
        description=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = made.add_subparsers(dest="verb", required=True, metavar="build|run")
    build = verbs.add_parser("build", help="make the image of this tree")
    run = verbs.add_parser("run", help="serve from it; options of the server come after --")
    run.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of the checkpoint")
    run.add_argument("cache", type=Path, metavar="CACHE", help="folder that keeps what a server builds")
    run.add_argument("--port", type=int, default=8000, metavar="N", help="of the host's 127.0.0.1; default 8000")
    run.add_argument("--seccomp", type=Path, metavar="FILE", help="seccomp profile that allows mbind and move_pages")
    for verb in (build, run):
        verb.add_argument("--print", action="store_true", help="show the command and run nothing")
    return made


def main(arguments: list[str], environ: Mapping[str, str] = os.environ) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, server = parser().parse_args(arguments[:cut]), arguments[cut + 1 :]
    if server and options.verb == "build":
        parser().error("build hands nothing on to a server")
    try:
        pins = pin_table.load()
        engine = find_engine(environ, needed=not options.print)
        if options.verb == "build":
            command = build_command(pins, engine)
        else:
            command = run_command(pins, engine, options, server, environ)
    except BuildError as error:
        print(f"container: error: {error}", file=sys.stderr)
        return error.code
    if options.print:
        print(shlex.join(command))
        return OK
    os.execvp(engine, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
