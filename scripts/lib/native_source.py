"""The pinned source archive of vLLM: what its CMake files fetch, and a patched tree to compile."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import fetch
import pins as pin_table
import repack
import stamp
from archive import unpack
from build_errors import BuildError

PATCH_DIR = pin_table.ROOT / "patch"
_CMAKE_FILES = re.compile(r"(?:.*/)?(?:CMakeLists\.txt|[^/]+\.cmake)\Z")
_CPU_ONLY = "cmake/cpu_extension.cmake"  # which a CUDA build does not include
_SET = re.compile(r'^\s*set\(\s*(\w+)\s+"?([^"\s)]+)"?\s*\)', re.MULTILINE)
_REPOSITORY = re.compile(r'^\s*GIT_REPOSITORY\s+"?([^"\s]+)"?', re.MULTILINE)
_TAG = re.compile(r'^\s*GIT_TAG\s+"?([^"\s]+)"?', re.MULTILINE)
_OVERRIDE = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
# Other ways to fetch. None is in use; one that appears has to be read and pinned too.
_OTHER_FETCH = re.compile(
    r"^\s*(?:URL\s|SVN_REPOSITORY|HG_REPOSITORY|DOWNLOAD_COMMAND\s|ExternalProject_Add\s*\(|CPM\w*\s*\()"
    r"|file\s*\(\s*DOWNLOAD|\bgit\s+clone|\b(?:curl|wget)\s",
    re.MULTILINE | re.IGNORECASE,
)
_DEEPGEMM_FILE = "cmake/external_projects/deepgemm.cmake"


@dataclass(frozen=True)
class GitSource:
    """A repository that CMake fetches. `override` is the environment variable that names a local copy."""

    file: str
    repository: str
    revision: str
    override: str

    @property
    def name(self) -> str:
        return self.repository.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")


def git_sources(texts: dict[str, str]) -> list[GitSource]:
    """Sources named by CMake files (name -> text). Raises BuildError if one cannot be read."""
    found = []
    for name, text in sorted(texts.items()):
        # The last assignment counts: where a file chooses by device, CUDA is the last choice.
        variables = dict(_SET.findall(text))
        repositories, tags = _REPOSITORY.findall(text), _TAG.findall(text)
        overrides = _OVERRIDE.findall(text)
        code = re.sub(r"#.*", "", text)
        if len(repositories) != len(tags) or (repositories and not overrides) or _OTHER_FETCH.search(code):
            raise BuildError(f"{name} of the pinned source fetches in a way that this script cannot read")
        for repository, tag in zip(repositories, tags, strict=True):
            found.append(GitSource(name, _expand(repository, variables), _expand(tag, variables), overrides[0]))
    return found


def differences(pins: pin_table.Pins, sources: list[GitSource]) -> list[str]:
    """Where the sources are not the pinned ones, a line each: another revision, a new one, one that is gone."""
    pinned = {name: dict(entry) for name, entry in pins.get("cmake_sources").items()}
    pinned["DeepGEMM"] = {"file": _DEEPGEMM_FILE, **pins.get("deepgemm")}
    found = {source.name: source for source in sources}
    lines = [f"{name}: no file of the source fetches it any more" for name in pinned.keys() - found.keys()]
    for name, source in found.items():
        if name not in pinned:
            lines.append(f"{name}: {source.file} fetches {source.revision} of {source.repository}, no pin says so")
            continue
        for field, wanted in pinned[name].items():
            if (actual := getattr(source, field)) != wanted:
                lines.append(f"{name}: {source.file} has {field} {actual}, the pin is {wanted}")
    return sorted(lines)


def _expand(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], match[0]), text)


def cmake_texts(pins: pin_table.Pins, archive: Path) -> dict[str, str]:
    """The CMake files of the archive that a CUDA build may read."""
    root = pins.get("vllm.sdist.root") + "/"
    texts = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(root)
            if name != _CPU_ONLY and _CMAKE_FILES.match(name) and (file := tar.extractfile(member)):
                texts[name] = file.read().decode()
    return texts


def patched_tree(pins: pin_table.Pins, native: Path) -> Path:
    """Unpacked and patched source, made anew unless it is there and of these inputs."""
    artifact = pins.artifact("vllm.sdist")
    patch, files = PATCH_DIR / pins.patch_name(), PATCH_DIR / "FILES.txt"
    inputs = stamp.digest([("sdist", artifact.sha256), ("patch", patch), ("files", files)])
    root = native / "work" / "cuda-native"
    tree = root / "source"
    if stamp.read(tree).get("inputs") == inputs:
        return tree
    archive = fetch.fetch(artifact, fetch.cache_dir())
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    unpack(archive, root, pins.get("vllm.sdist.root") + "/")
    os.replace(root / pins.get("vllm.sdist.root"), tree)
    repack.apply_patch(tree, patch, files)
    stamp.write(tree, {"inputs": inputs})
    return tree
