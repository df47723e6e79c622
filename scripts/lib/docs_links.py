"""Links, and files and names that documents mention: each must exist in a clone.

Looked at are the targets of links and pictures, and code spans that look like a path, a file, a variable or an option.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import docs_source
from docs_source import Document, Fault

READERS_OWN = {
    "bench/recipes/mine.yaml": "the recipe that a reader writes",
    "patch/series/NN-name.patch": "the form of names there",
    "profiles/seccomp/default.json": "of the container engine's own source",
    "models/DeepSeek-V4-Flash-0731": "where the profiles look for the checkpoint unless MODEL_PATH names a folder",
}
"""Paths that no clone has, and why documents name them."""
MADE = {
    "audit.json": "the server writes it",
    "audit.startup.json": "the server writes it",
    "config.json": "of a checkpoint",
    "tokenizer.json": "of a checkpoint",
    "sheet.yaml": "a grader fills it in",
    "served.json": "moet serve writes it",
    "server.log": "the demo writes it",
}
"""Names of files that a program makes or a checkpoint has."""
ELSEWHERE = {
    "--cap-add": "docker and podman",
    "SYS_NICE": "a capability of Linux",
}
"""Options and names in capitals of programs that are not ours, where no code of ours has them."""
_PLACEHOLDER = re.compile(r"\b(SUITE|NAME|PROFILE)\b")
"""Words of a path that stand for any."""
_PATH = re.compile(r"[\w.*{},-]+(/[\w.*{},-]*)+")
_FILE = re.compile(r"[\w.-]+\.(py|sh|cu|cuh|md|yaml|yml|toml|json|jsonl|patch|txt|lock|service|nix|svg|cubin|png)")
_VARIABLE = re.compile(r"(?<!\w)[A-Z][A-Z0-9]*(_[A-Z0-9]+)+(?==|\b)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
_VLLM_OPTIONS = (("engine", "arg_utils.py"), ("entrypoints", "launchers", "cli_args.py"))
"""Where vLLM's options are fields of a dataclass."""
_SCHEME = re.compile(r"^(https?|mailto):")


def faults(document: Document) -> Iterator[Fault]:
    """What a document names that is not there."""
    for line, target in document.links:
        if not _SCHEME.match(target):
            yield from _link(document, line, target)
    for line, span in document.spans:
        yield from _span(document, line, span)


def _link(document: Document, line: int, target: str) -> Iterator[Fault]:
    path, _, anchor = target.partition("#")
    name = document.name if not path else _normal(PurePosixPath(document.name).parent / path)
    if not exists(name):
        yield document.fault(line, f"link to {target}: {name} is not in the tree")
    elif anchor and name.endswith(".md"):
        other = document if name == document.name else _read(name)
        if anchor not in other.anchors:
            yield document.fault(line, f"link to {target}: {name} has no heading for #{anchor}")


def _span(document: Document, line: int, span: str) -> Iterator[Fault]:
    word = span.rstrip("/")
    if re.fullmatch(r"/?[\w.*{},/-]+", span) and not span.startswith(("/", ".native")):
        if _PATH.fullmatch(span) and _ours(word) and not named(word):
            yield document.fault(line, f"`{span}` is no file or folder of the tree")
        elif _FILE.fullmatch(span) and span not in MADE and not named(word):
            yield document.fault(line, f"`{span}` is no file of the tree")
    for match in _VARIABLE.finditer(span):
        if match[0] not in variables() and match[0] not in ELSEWHERE:
            yield document.fault(line, f"`{match[0]}` is no variable that this tree or its vLLM reads")
    for match in _OPTION.finditer(span):
        if match[0] not in ELSEWHERE and not has_option(match[0]):
            yield document.fault(line, f"`{match[0]}` is no option of a program of this tree, or of its vLLM")


@cache
def _folders() -> frozenset[str]:
    return frozenset(str(parent) for name in docs_source.here() for parent in PurePosixPath(name).parents)


def exists(name: str) -> bool:
    """A file or folder of a clone, by its path from the root."""
    return name in docs_source.here() or name in _folders()


def named(word: str) -> bool:
    """A path from the root, or the end of one: `planner/costs.py` is named where the package is spoken of."""
    word = _PLACEHOLDER.sub("*", word.removeprefix("./"))
    if word in READERS_OWN or exists(word):
        return True
    every = (*docs_source.here(), *_folders())
    if "*" in word:
        return bool(fnmatch.filter(every, word)) or bool(fnmatch.filter(every, f"*/{word}"))
    return any(name.endswith(f"/{word}") for name in every)


def _ours(word: str) -> bool:
    """Whether a word with slashes means a path of this tree at all, and not `text/plain` or `chat/completions`."""
    first = word.removeprefix("./").partition("/")[0]
    tops = {name.partition("/")[0] for name in docs_source.here()}
    return first in tops or first == "moet_w2" or bool(_FILE.fullmatch(PurePosixPath(word).name))


def _normal(path: PurePosixPath) -> str:
    return str(PurePosixPath(os.path.normpath(path)))


@cache
def _read(name: str) -> Document:
    return Document(name, (docs_source.ROOT / name).read_text(encoding="utf-8"))


@cache
def vllm_text(*parts: str) -> str:
    """Text of a file of the installed vLLM, which is not imported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return ""
    return Path(spec.submodule_search_locations[0]).joinpath(*parts).read_text(encoding="utf-8")


@cache
def variables() -> frozenset[str]:
    """Every name in capitals that code of this tree or vLLM's table of variables holds, or that a test reads."""
    text = docs_source.sources() + vllm_text("envs.py")
    read = re.findall(r"""(?:environ(?:\.get)?[\[(]|examples\(\d+, )["'](\w+)""", docs_source.sources(tests=True))
    return frozenset(match[0] for match in _VARIABLE.finditer(text)).union(read)


@cache
def has_option(option: str) -> bool:
    """An option of a parser of this tree, one that vLLM's engine knows, or one that a remedy of ours names."""
    dashed = re.compile(re.escape(option) + r"(?![\w-])")
    if any(dashed.search(text) for text in (docs_source.sources(), vllm_text("engine", "arg_utils.py"))):
        return True
    # vLLM derives options from the fields of its configuration.
    field = re.compile(rf"^    {option[2:].replace('-', '_')}: ", re.M)
    return any(field.search(vllm_text(*file)) for file in _VLLM_OPTIONS)
