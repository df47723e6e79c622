"""Nix on a machine without it, and the flake's inputs on a machine without a network.

    python3 nix/tests/nix_host.py [COMMAND...]

obtains Nix if need be (`obtain`), and runs a command with the overrides, such as `flake check` (default) or
`build .#vllm-source --no-link`. Exit status: that of Nix, or 3 where Nix cannot be had.

Nix is taken from PATH, from the cache, or from Debian's packages, which are unpacked below
${XDG_CACHE_HOME:-~/.cache}/moet/nix: no root, no daemon, no /nix. Each `Nix` has a store of its own that begins empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

import fetch
import pins as pin_table
from build_errors import MISSING, BuildError

REPOSITORY = pin_table.ROOT
HERE = Path(__file__).resolve().parent
LIMIT_S = 600
OLDEST = (2, 8)  # the oldest that the flake is written for
ENVIRONMENT = REPOSITORY / ".native" / "venv-cpu"
LEFT_OUT = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
DEPENDS = ("depends", "--recurse", *(f"--no-{kind}" for kind in LEFT_OUT), "nix-bin")
CONFIGURATION = """
experimental-features = nix-command flakes
substituters =
flake-registry =
builders =
build-users-group =
sandbox = false
max-jobs = 2
keep-going = true
fsync-metadata = false
warn-dirty = false
"""


@dataclass(frozen=True)
class Nix:
    """A Nix and where it keeps everything. `tree` is the flake."""

    program: Path
    unpacked: Path | None  # root of Debian's packages, or None if installed
    state: Path

    def run(
        self,
        *arguments: str,
        tree: str = f"git+file://{REPOSITORY}",
        inputs: Mapping[str, str] | None = MappingProxyType({}),
    ) -> str:
        """Standard output of `nix ARGUMENTS`, where `.` before a # stands for the tree.

        `inputs` gives other stand-ins than the usual ones: name of an input -> flake reference. With None no input is
        overridden, and Nix may write flake.lock.

        Raises BuildError with the last lines of what Nix said if it fails.
        """
        words = [re.sub(r"\A\.(?=#|\Z)", lambda _match: tree, word) for word in arguments]
        if words[0] == "flake":
            words.insert(2, tree)
        command = [str(self.program), *words, "--print-build-logs"]
        if inputs is not None:
            command.append("--no-write-lock-file")
            for name, place in (self.inputs() | inputs).items():
                command += ["--override-input", name, place]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            raise BuildError("\n".join(done.stderr.strip().splitlines()[-40:]), done.returncode)
        return done.stdout

    def inputs(self) -> dict[str, str]:
        """The stand-ins: name of an input -> flake reference."""
        return {"nixpkgs": f"path:{self.state}/nixpkgs", "deepgemm": f"path:{HERE}/deepgemm"}

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        places = {f"NIX_{name}_DIR": str(self.state / name.lower()) for name in ("STORE", "STATE", "LOG", "CONF")}
        places |= {"NIX_LOCALSTATE_DIR": str(self.state / "local"), "XDG_CACHE_HOME": str(self.state / "cache")}
        if self.unpacked is not None:
            usr = self.unpacked / "usr"
            libraries = [usr / "lib" / "x86_64-linux-gnu", usr / "lib" / "nix"]
            places["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
            places |= {"NIX_LIBEXEC_DIR": str(usr / "libexec"), "NIX_DATA_DIR": str(usr / "share")}
        return kept | places | {"HOME": str(self.state / "home"), "NIX_CONFIG": CONFIGURATION}


@contextlib.contextmanager
def opened() -> Iterator[Nix]:
    """A Nix with an empty store below .native/, which is removed afterwards, and the stand-in for nixpkgs beside it.

    Raises BuildError if there is no Nix here, or no environment to take tools from.
    """
    program, unpacked = find()
    parent = (REPOSITORY / ".native").resolve()
    if not ENVIRONMENT.exists():
        raise BuildError(f"{ENVIRONMENT} is missing; run `make setup`", MISSING)
    state = Path(tempfile.mkdtemp(prefix="nix-", dir=parent))
    try:
        (state / "home").mkdir()
        shutil.copytree(HERE / "nixpkgs", state / "nixpkgs")
        (state / "nixpkgs" / "host.nix").write_text(host(pin_table.load()))
        yield Nix(program, unpacked, state)
    finally:
        _remove(state)


def host(pins: pin_table.Pins) -> str:
    """host.nix: what the stand-in has to know about this machine."""
    python = ENVIRONMENT / "bin" / "python"
    interpreter = subprocess.run(
        [python, "-c", "import sys; print(sys._base_executable)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    facts = {
        "path": os.pathsep.join([str(ENVIRONMENT.resolve() / "bin"), os.environ.get("PATH", ""), "/usr/bin", "/bin"]),
        "environment": str(ENVIRONMENT.resolve()),
        "python": str(Path(interpreter).resolve()),
        "pythonVersion": pins.get("python.cuda"),
        "downloads": str(fetch.cache_dir()),
        "cudaCompiler": pins.get("cuda.compiler"),
        "cudaRelease": "_".join(pins.get("cuda.compiler").split(".")[:2]),
    }
    return "{\n" + "".join(f'  {name} = "{value}";\n' for name, value in facts.items()) + "}\n"


def find() -> tuple[Path, Path | None]:
    """The program and the root of its packages. Raises BuildError if Nix is neither installed nor unpacked here."""
    installed = shutil.which("nix")
    if installed and _version(Path(installed), {}) >= OLDEST:
        return Path(installed), None
    root = cache()
    if (root / "usr" / "bin" / "nix").is_file():
        return root / "usr" / "bin" / "nix", root
    raise BuildError("there is no Nix on this machine; get it with: make nix", MISSING)


def cache() -> Path:
    """Where Debian's packages are unpacked."""
    return fetch.cache_dir().parent / "nix"


def _version(program: Path, environment: dict[str, str]) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, env={**os.environ, **environment})
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def obtain() -> Path:
    """Make sure of a Nix: `find`, or download Debian's package and the libraries that it lacks, and unpack them.

    Raises BuildError if that cannot be done here.
    """
    with contextlib.suppress(BuildError):
        return find()[0]
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BuildError("no Nix here and no apt-get to get it with; install Nix", MISSING)
    root = cache()
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="nix-") as name:
        folder = Path(name)
        _download(folder)
        for package in folder.glob("*.deb"):
            _quiet(["dpkg-deb", "-x", str(package), str(folder / "root")])
        nix = Nix(folder / "root" / "usr" / "bin" / "nix", folder / "root", folder / "state")
        if _version(nix.program, nix._environment()) < OLDEST:
            raise BuildError("Debian's nix-bin does not run here; install Nix", MISSING)
        shutil.rmtree(root, ignore_errors=True)
        (folder / "root").rename(root)
    return find()[0]


def _download(folder: Path) -> None:
    """nix-bin and those of its dependencies that are libraries and not installed here."""
    lists: list[str] = []
    try:
        depends = _quiet(["apt-cache", *DEPENDS])
    except BuildError:  # no package lists, as in a fresh container: get some of our own
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        lists = ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        _quiet(["apt-get", *lists, "update"])
        depends = _quiet(["apt-cache", *lists, *DEPENDS])
    libraries = re.findall(r"^(lib[a-z0-9.+-]+)$", depends, re.MULTILINE)
    wanted = ["nix-bin", *(name for name in libraries if not name.endswith("-perl") and not _installed(name))]
    _quiet(["apt-get", *lists, "download", *wanted], folder)


def _installed(package: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f=${Status}", package], capture_output=True, text=True)
    return done.stdout == "install ok installed"


def _quiet(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"{command[0]} failed: {last}; install Nix", MISSING)
    return done.stdout


def _remove(folder: Path) -> None:
    """Remove a store: tens of thousands of files, in folders that are read-only."""
    if os.geteuid():
        subprocess.run(["chmod", "-R", "u+w", str(folder)])
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def main(arguments: list[str]) -> int:
    try:
        print(f"nix: {obtain()}", file=sys.stderr)
        if arguments == ["--obtain"]:
            return 0
        with opened() as nix:
            print(nix.run(*(arguments or ["flake", "check"])), end="")
    except BuildError as error:
        print(f"nix: error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
