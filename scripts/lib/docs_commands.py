"""Commands in documents: blocks of shell are parsed by bash, each command by the program that it calls.

A program of this tree is asked with the very parser that it has (`docs_programs`). Cheap ones are run. A block that is
neither shell nor recognisably a drawing is a fault, so that a misspelt command cannot pass for one.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import docs_links
import docs_programs
from docs_source import SHELL_LANGUAGES, Document, Fault

OUTSIDE = {
    "apt-get", "cat", "cd", "chmod", "cp", "curl", "docker", "export", "git", "grep", "install", "journalctl", "less",
    "ls", "mkdir", "mv", "nvidia-smi", "numactl", "openssl", "podman", "rm", "sudo", "systemctl", "tar", "ulimit",
    "useradd", "rsync", "scp", "sha256sum", "df", "kill", "nix", "source", ".", "getconf", "printf", "dmesg", "lscpu",
}  # fmt: skip
"""Programs that are not ours: their options are not checked."""
_OPERATORS = {"&&", "||", "|", ";", "&"}
_REDIRECTS = {">", ">>", "<", "2>", "&>"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_INNER = re.compile(r"\$\(([^()]*)\)")
_DRAWN = re.compile(r"\S {2,}\S|[─│└┌┐┘├→|<>{}]|^\S+:$", re.M)


@dataclass
class Words:
    """One simple command.

    Attributes:
        environment: assignments before the program.
        words: the program and its arguments; empty where only variables are set.
    """

    environment: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def faults(document: Document, run: bool = True) -> Iterator[Fault]:
    """What is wrong with a document's commands.

    Args:
        document: the document.
        run: run the commands that are cheap and change nothing.
    """
    for block in document.blocks:
        if is_shell(block.language, block.text):
            yield from _block(document, block.line, block.text, run)
        elif not block.language and not _DRAWN.search(block.text):
            yield document.fault(
                block.line, f"{block.text.splitlines()[0]!r} begins with no known program, and is no drawing"
            )
    for line, span in document.spans:
        if " " in span and docs_programs.is_ours(span.split()[0]):
            for each in alternatives(span):
                yield from _command(document, line, each, run=False, whole=False)


def is_shell(language: str, text: str) -> bool:
    """Whether a block holds commands: its fence says so, or without a word on its fence one of its lines is one."""
    if language:
        return language in SHELL_LANGUAGES
    return any(_begins_command(line) for line in text.splitlines())


def _begins_command(line: str) -> bool:
    words = line.split()
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    return bool(words) and (words[0] in OUTSIDE - {"."} or docs_programs.is_ours(words[0]))


def alternatives(span: str) -> list[str]:
    """`moet cache ls|verify` is two commands."""
    found = [""]
    for word in span.split():
        parts = word.split("|") if re.fullmatch(r"[\w|-]+", word) else [word]
        found = [f"{before} {part}".strip() for before in found for part in parts]
    return found


def _block(document: Document, line: int, text: str, run: bool) -> Iterator[Fault]:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if done.returncode:
        yield document.fault(line, f"bash cannot parse the block: {done.stderr.strip().splitlines()[0]}")
        return
    pending, start = "", line
    for number, each in enumerate(text.splitlines(), line):
        start = start if pending else number
        pending += each
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        if pending.strip():
            yield from _command(document, start, pending, run)
        pending = ""


def _command(document: Document, line: int, text: str, run: bool, whole: bool = True) -> Iterator[Fault]:
    try:
        commands = list(split(text))
    except ValueError as error:
        yield document.fault(line, f"{text!r} cannot be split into words ({error})")
        return
    for command in commands:
        for name in command.environment:
            if "_" in name and name.isupper() and name not in docs_links.variables():
                yield document.fault(line, f"{name} is no variable that this tree or its vLLM reads")
        if not command.words or command.words[0] in OUTSIDE:
            continue
        for problem in docs_programs.problems(command.words, command.environment, run, whole):
            yield document.fault(line, f"`{shlex.join(command.words)}`: {problem}")


def split(text: str) -> Iterator[Words]:
    """The simple commands of one line, those of `$(...)` too; redirections are dropped.

    Raises:
        ValueError: a quotation has no end.
    """
    for inner in _INNER.findall(text):
        yield from split(inner)
    text = _INNER.sub("INNER", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    command, skip = Words(), False
    for word in lexer:
        if word in _OPERATORS:
            yield command
            command = Words()
        elif skip:
            skip = False
        elif word in _REDIRECTS:
            skip = True
        elif not command.words and (match := _ASSIGNMENT.fullmatch(word)):
            command.environment[match[1]] = match[2]
        elif command.words[:1] != ["sudo"] or word.startswith("-"):
            command.words.append(word)
        else:
            command.words[0] = word
    yield command
