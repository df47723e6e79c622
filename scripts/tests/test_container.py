"""The image: Containerfile against the pins and the tree, and the flags that its scripts give."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import container
import container_lint
import pins
import pytest
import seccomp_profile
from build_errors import BuildError

from moet_w2 import overrides

TABLE = pins.load()
ROOT = pins.ROOT
TEXT = (ROOT / "Containerfile").read_text()
DIGEST = "sha256:" + "a" * 64


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each instruction, continued lines joined and comments left out."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", code)
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def all_of(name: str) -> list[str]:
    return [rest.strip() for found, rest in instructions(TEXT) if found == name]


# -- Containerfile


@pytest.fixture(scope="module")
def hadolint() -> Path:
    program = container_lint.hadolint(TABLE, ROOT / ".native", download=False)
    if program is None:
        pytest.skip("hadolint is not downloaded yet: scripts/lint.sh does it")
    return program


def test_hadolint_finds_nothing(hadolint: Path) -> None:
    assert container_lint.findings(hadolint, ROOT / "Containerfile") == ""


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("# hadolint ignore=DL3008\nRUN apt-get", "RUN apt-get", "DL3008"),
        ("USER 10001\n", "USER root\n", "DL3002"),
        ("STOPSIGNAL SIGTERM", "STOPSIGNALS SIGTERM", "Containerfile:"),
    ],
)
def test_hadolint_finds_what_is_wrong(hadolint: Path, tmp_path: Path, before: str, after: str, finding: str) -> None:
    assert before in TEXT
    (tmp_path / "Containerfile").write_text(TEXT.replace(before, after))
    assert finding in container_lint.findings(hadolint, tmp_path / "Containerfile")


def test_it_is_made_with_what_is_pinned() -> None:
    assert all_of("ARG")[:2] == ["BASE", "TOOLKIT"], "base images have no default: the script gives the pinned ones"
    assert f"python{TABLE.get('python.cuda')} " in TEXT
    cuda = ".".join(TABLE.get("cuda.compiler").split(".")[:2])
    assert f"/usr/local/cuda-{cuda} /usr/local/cuda" in TEXT and f":{cuda}." in TABLE.get("container.toolkit.image")
    assert "scripts/build-native.sh cuda " in TEXT
    for name in ("base", "toolkit"):
        image, digest = TABLE.get(f"container.{name}.image"), TABLE.get(f"container.{name}.digest")
        assert image.startswith("docker.io/") and "@" not in image
        assert re.fullmatch(r"(?:sha256:[0-9a-f]{64})?", digest)


def test_what_it_names_is_there() -> None:
    (entry,) = all_of("ENTRYPOINT")
    script = ROOT / Path(json.loads(entry)[0]).relative_to("/opt/moet")
    assert os.access(script, os.X_OK)
    variables = dict(re.findall(r"(\w+)=(\S+)", all_of("ENV")[0]))
    assert set(variables) >= {"CACHE_ROOT", "HOST", "MODEL_PATH", "PORT", "CUDA_HOME"}
    read = overrides.read({name: variables[name] for name in ("CACHE_ROOT", "HOST", "MODEL_PATH", "PORT")})
    assert (read.host, str(read.port), str(read.root)) == ("0.0.0.0", all_of("EXPOSE")[0], variables["CACHE_ROOT"])
    assert json.loads(all_of("VOLUME")[0]) == [variables["CACHE_ROOT"]]
    assert all_of("USER") == ["10001"] and "--uid 10001" in TEXT


def test_the_context_leaves_out_what_is_not_the_trees() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", ".native", "**/__pycache__", "**/build", "**/dist"} <= set(lines)
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    folders = {part for name in tracked.stdout.splitlines() for part in Path(name).parts[:-1]}
    assert not folders & {"build", "dist"}, "a folder of the tree that the image would lack"


# -- scripts/container.sh


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    found = [tmp_path / "checkpoint", tmp_path / "cache"]
    for folder in found:
        folder.mkdir()
    return [str(folder) for folder in found]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    assert container.main([*arguments], environ) == 0
    return capsys.readouterr().out


def test_run_allows_what_mapped_layers_need(folders: list[str], tmp_path: Path, capsys) -> None:
    command = printed(capsys, "run", *folders, "--print", "--", "--profile", "300k", VLLM_API_KEY="secret")
    assert command == (
        "docker run --rm --init --ulimit memlock=-1 --gpus all "
        f"--volume {folders[0]}:/models/checkpoint:ro --volume {folders[1]}:/var/cache/moet "
        f"--publish 127.0.0.1:8000:8000 --env VLLM_API_KEY {container.tag(TABLE)} --profile 300k\n"
    )
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(DOCKER))
    options = ["--seccomp", str(profile), "--port", "9000"]
    command = printed(capsys, "run", *folders, *options, "--print", CONTAINER_ENGINE="podman")
    assert command.startswith("podman run --rm --init --ulimit memlock=-1 ")
    assert f" --security-opt seccomp={profile} --device nvidia.com/gpu=all " in command
    assert "VLLM_API_KEY" not in command and "127.0.0.1:9000:8000" in command


def test_several_nodes_need_a_profile(folders: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    """Without one, the engine's filter ends the start: test_container_calls.py."""
    for name in ("node0", "node1", "has_cpu"):
        (tmp_path / name).mkdir()
    assert container.numa_nodes(tmp_path) == 2
    monkeypatch.setattr(container, "numa_nodes", lambda: 2)
    assert container.main(["run", *folders, "--print"], {}) == 0
    assert capsys.readouterr().err == "container: 2 NUMA nodes: layers are mapped only with --seccomp FILE\n"
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(DOCKER))
    assert container.main(["run", *folders, "--seccomp", str(profile), "--print"], {}) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["push"],
        ["build", "x"],
        ["build", "--", "x"],
        ["run", "FOLDER"],
        ["run", "FOLDER", "FOLDER", "--port", "x"],
        ["run", "FOLDER", "FOLDER", "--profile", "300k"],
    ],
)
def test_wrong_usage_is_status_2(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        container.main([str(tmp_path) if word == "FOLDER" else word for word in arguments])
    assert caught.value.code == 2 and "usage: container.sh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FOLDER", "/nowhere"], "/nowhere is no folder; name one of this host"),
        (["/nowhere", "FOLDER"], "/nowhere is no folder"),
        (["FOLDER", "FOLDER", "--seccomp", "/nowhere"], "--seccomp /nowhere is no file; scripts/seccomp-profile.sh"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, arguments: list[str], message: str, capsys) -> None:
    assert container.main(["run", "--print", *(str(tmp_path) if word == "FOLDER" else word for word in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [', "not JSON"),
        ("\udcff", "not JSON"),
        ("[]", "it has no defaultAction"),
        ('{"syscalls": []}', "it has no defaultAction"),
        ('{"defaultAction": "SCMP_ACT_ERRNO"}', "its syscalls are no list of rules with names"),
        (
            '{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW"}]}',
            "its syscalls are no list of rules",
        ),
    ],
)
def test_what_is_no_seccomp_profile_never_reaches_an_engine(
    folders: list[str], tmp_path: Path, content: str, message: str
) -> None:
    engine, called, profile = tmp_path / "docker", tmp_path / "called", tmp_path / "profile.json"
    engine.write_text(f"#!/bin/sh\ntouch {called}\n")
    engine.chmod(0o755)
    profile.write_text(content, errors="surrogateescape")
    command = [ROOT / "scripts" / "container.sh", "run", *folders, "--seccomp", str(profile)]
    environment = {**os.environ, "CONTAINER_ENGINE": str(engine)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and not called.exists()
    assert line.startswith(f"container: error: {profile} is no seccomp profile: {message}")
    assert line.endswith("; scripts/seccomp-profile.sh writes one")
    old = {**PODMAN, "syscalls": [{"name": "read", "action": "SCMP_ACT_ALLOW"}]}
    profile.write_text(json.dumps(old))
    assert subprocess.run(command, env=environment).returncode == 0 and called.exists()


def test_build_takes_the_pinned_images_and_says_what_is_not_pinned(monkeypatch, capsys) -> None:
    table = json.loads(json.dumps(TABLE.table))
    table["container"]["toolkit"]["digest"], table["container"]["base"]["digest"] = DIGEST, ""
    monkeypatch.setattr(pins, "load", lambda: pins.Pins(table, pins.PINS_FILE))
    assert container.main(["build", "--print"], {}) == 0
    captured = capsys.readouterr()
    assert f"TOOLKIT={TABLE.get('container.toolkit.image')}@{DIGEST} " in captured.out
    assert f"BASE={TABLE.get('container.base.image')} " in captured.out and captured.out.endswith(f" {ROOT}\n")
    assert re.search(r"REVISION=[0-9a-f]{40}", captured.out)
    (line,) = captured.err.splitlines()
    assert line.endswith("is pinned by its tag alone; container.base.digest in pins.toml is empty")


def test_no_engine_is_status_3(folders: list[str]) -> None:
    command = [ROOT / "scripts" / "container.sh", "run", *folders]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "CONTAINER_ENGINE": "no-such-engine"}
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "no-such-engine is not on PATH; install it, or set CONTAINER_ENGINE" in done.stderr


def test_the_engine_gets_the_command(folders: list[str], tmp_path: Path) -> None:
    """A program in the engine's place; its status is the script's."""
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    engine.chmod(0o755)
    command = [ROOT / "scripts" / "container.sh", "run", *folders, "--", "--dry-run"]
    environment = {**os.environ, "CONTAINER_ENGINE": str(engine)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 7 and done.stdout.startswith("run --rm --init") and done.stdout.endswith("--dry-run\n")


# -- the entry point


@pytest.mark.parametrize("fails", [False, True])
def test_the_doctor_comes_before_the_server(tmp_path: Path, fails: bool) -> None:
    program = tmp_path / "env" / "bin" / "moet"
    program.parent.mkdir(parents=True)
    log = tmp_path / "log"
    status = f'[ "$1" != doctor ] || exit {int(fails)}'
    program.write_text(f'#!/bin/sh\necho "$@" >>{log}\n{status}\n')
    program.chmod(0o755)
    (program.parent / "python").symlink_to("/bin/true")
    command = [ROOT / "scripts" / "container-entry.sh", "--profile", "300k", "--stock"]
    environment = {**os.environ, "MOET_ENV": str(tmp_path / "env")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == int(fails), done.stderr
    recipe = ROOT / "bench" / "recipes" / "pro6000-300k.yaml"
    calls = [f"doctor --recipe {recipe} --stock", f"serve --recipe {recipe} --stock"]
    assert log.read_text().splitlines() == calls[: 1 if fails else 2]
    assert recipe.is_file()


# -- the seccomp profile


def rule(names: list[str], action: str, **more: object) -> dict:
    return {"names": names, "action": action, **more}


DOCKER = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 1,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64"}],
    "syscalls": [
        rule(["mlock", "read"], "SCMP_ACT_ALLOW"),
        rule(["get_mempolicy", "mbind"], "SCMP_ACT_ALLOW", includes={"caps": ["CAP_SYS_NICE"]}),
    ],
}
PODMAN = {
    **DOCKER,
    "syscalls": [
        rule(["migrate_pages", "move_pages"], "SCMP_ACT_ERRNO", errnoRet=1),
        *DOCKER["syscalls"],
        rule(["mbind"], "SCMP_ACT_ERRNO", excludes={"caps": ["CAP_SYS_NICE"]}),
    ],
}


@pytest.mark.parametrize("profile", [DOCKER, PODMAN])
def test_the_calls_are_allowed_once_and_all_else_is_kept(profile: dict) -> None:
    made = seccomp_profile.allow(profile)
    naming = [entry for entry in made["syscalls"] if {"mbind", "move_pages"} & set(entry["names"])]
    assert [(entry["names"], entry["action"]) for entry in naming] == [(["mbind", "move_pages"], "SCMP_ACT_ALLOW")]
    assert "includes" not in naming[0] and "excludes" not in naming[0]
    rest = [
        {**entry, "names": [name for name in entry["names"] if name not in ("mbind", "move_pages")]}
        for entry in profile["syscalls"]
    ]
    assert made["syscalls"][:-1] == [entry for entry in rest if entry["names"]]
    assert {name: made[name] for name in made if name != "syscalls"} == {
        name: profile[name] for name in profile if name != "syscalls"
    }


@pytest.mark.parametrize(
    "profile", [{}, {**DOCKER, "defaultAction": "SCMP_ACT_ALLOW"}, {**DOCKER, "syscalls": [{"name": "read"}]}]
)
def test_what_is_no_default_profile_is_refused(profile: dict) -> None:
    with pytest.raises(BuildError, match="name a profile that refuses|name the engine's own default profile"):
        seccomp_profile.allow(profile)


def test_the_command_prints_a_profile_or_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "default.json").write_text(json.dumps(DOCKER))
    assert seccomp_profile.main([str(tmp_path / "default.json")]) == 0
    assert json.loads(capsys.readouterr().out) == seccomp_profile.allow(DOCKER)
    (tmp_path / "default.json").write_text("{")
    assert seccomp_profile.main([str(tmp_path / "default.json")]) == 1
    assert seccomp_profile.main([str(tmp_path / "none.json")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_calls_are_those_that_host_memory_makes() -> None:
    text = (ROOT / "runtime_ext" / "src" / "moet_w2" / "linux.py").read_text()
    numbers = re.findall(r"_SYS_(\w+)", text)
    assert {name.lower() for name in numbers} == set(seccomp_profile.CALLS)
