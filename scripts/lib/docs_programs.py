"""The programs of this tree, each asked whether it would take some words: its own argparse parser, or its script.

Nothing of a parser is copied here. Commands that only look are run to their end, in this process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import docs_attempt
import docs_links
from docs_source import ROOT

PLACEHOLDERS = {"N": "1", "P": "freq", "KIND": "call", "COUNT": "1"}
"""What stands for a placeholder of a code span where a parser converts it."""
STAND_INS = {
    "bench/recipes/mine.yaml": "bench/recipes/demo-cpu.yaml",
    "/path/to/checkpoint": "demo/checkpoint",
    "FILE.png": "curve.png",
}
"""Where a document leaves a file to its reader, the one that such a command is tried with."""
SERVING = {
    "serve-demo.sh": "bench/recipes/demo-cpu.yaml",
    "serve-pro6000-ds4flash.sh": "bench/recipes/pro6000-512k.yaml",
}
"""Scripts that hand their options to `moet serve`, and the recipe that they name."""
_HANDS_ON = re.compile(r'''(?:"\$MOET_ROOT/(scripts/lib/\w+\.py)"|-m ([\w.]+)) "\$@"''')
"""Where a script hands all of its words to a Python program."""
_LABELS = re.compile(r"^\s*([\w=* |-]+)\)", re.M)
"""Labels of a shell script's `case`."""
_PYTHONS = re.compile(r"python(3(\.\d+)?)?$")
_OURS = re.compile(r"(\./)?(scripts|bench|\.ci)/[\w./-]+$|(\S*/)?moet$|make$")


def is_ours(program: str) -> bool:
    """Whether a word names a program whose words can be checked: make, moet, a script of this tree, or Python."""
    return bool(_OURS.fullmatch(program) or _PYTHONS.fullmatch(Path(program).name))


def problems(words: list[str], environment: dict[str, str], run: bool, whole: bool = True) -> Iterator[str]:
    """Why a program would not take these words; nothing where it would.

    Args:
        words: the program and its arguments.
        environment: variables set for it.
        run: whether commands that are cheap and change nothing are run.
        whole: whether arguments that it requires must be there; a sentence may name a verb alone.
    """
    for problem in _problems(words, environment, run):
        if whole or "the following arguments are required" not in problem:
            yield problem


def _problems(words: list[str], environment: dict[str, str], run: bool) -> Iterator[str]:
    program, *arguments = words
    arguments = [PLACEHOLDERS.get(word, STAND_INS.get(word, word)) for word in arguments]
    name = Path(program).name
    for word in arguments:
        if re.fullmatch(r"(bench|demo|docs|validation|scripts|kernels)/[\w./-]+", word) and not docs_links.named(word):
            yield f"{word} is not in the tree"
            return
    if name == "make":
        yield from _make(arguments)
    elif name == "moet":
        yield from _moet(arguments, environment, run)
    elif _PYTHONS.fullmatch(name):
        yield from _python(arguments)
    elif name.endswith(".py"):
        if docs_links.exists(program) and not os.access(ROOT / program, os.X_OK):
            yield f"{program} is not executable; write python before it"
        yield from docs_attempt.parsed(program.removeprefix("./"), arguments)
    elif name.endswith(".sh"):
        yield from _script(program.removeprefix("./"), arguments)
    else:
        yield "is no program of this tree, nor one of those that are known (docs_commands.OUTSIDE)"


def _make(arguments: list[str]) -> Iterator[str]:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for word in arguments:
        variable = re.fullmatch(r"(\w+)=.*", word)
        if variable and variable[1] not in ("PORT", "HOST") and variable[1] not in docs_links.variables():
            yield f"{variable[1]} is no variable that a script reads"
        elif not variable and word not in verbs:
            yield f"{word} is no verb of the Makefile"


def _moet(arguments: list[str], environment: dict[str, str], run: bool) -> Iterator[str]:
    from moet_w2 import cli

    if "--help" in arguments:
        return
    status, error = docs_attempt.attempt(lambda: cli._parser().parse_args(arguments))
    if status:
        yield error
    elif run and _only_looks(arguments):
        given = {name: STAND_INS.get(value, value) for name, value in environment.items()}
        status, error = docs_attempt.attempt(lambda: cli.main(arguments), given)
        if status:
            yield f"ends with status {status}: {error}"


def _only_looks(arguments: list[str]) -> bool:
    if arguments[0] == "plan":
        return "--measure" not in arguments
    return "--dry-run" in arguments or arguments[:2] == ["checkpoint", "check"] or arguments == ["doctor"]


def _python(arguments: list[str]) -> Iterator[str]:
    if arguments[:1] == ["-c"]:
        compile(arguments[1], "-c", "exec")
    elif arguments[:2] == ["-m", "pytest"]:
        for word in arguments[2:]:
            path = word.partition("::")[0]
            if not word.startswith("-") and not docs_links.exists(path.rstrip("/")):
                yield f"{word} is not in the tree"
    elif arguments[:1] == ["-m"] and arguments[1].partition(".")[0] not in sys.stdlib_module_names:
        yield from docs_attempt.parsed(arguments[1], arguments[2:])
    elif arguments and not arguments[0].startswith(("/", "-")):  # what lies elsewhere is not ours
        yield from docs_attempt.parsed(arguments[0], arguments[1:])


def _script(path: str, arguments: list[str]) -> Iterator[str]:
    """A shell script: options that it names itself, and the rest by the program that it hands them to."""
    if not docs_links.exists(path):
        yield f"{path} is not in the tree"
        return
    if not os.access(ROOT / path, os.X_OK):
        yield f"{path} is not executable"
    text = docs_attempt.script_text(path)
    if "--help" in arguments:
        return
    hands_on = _HANDS_ON.search(text)
    if hands_on:
        yield from docs_attempt.parsed(hands_on[1] or hands_on[2], arguments)
        return
    rest = list(_not_its_own(text, arguments))
    recipe = SERVING.get(Path(path).name)
    if recipe is not None:
        yield from _moet(["serve", "--recipe", recipe, *rest], {}, run="--dry-run" in rest)
    elif rest:
        yield f"{path} takes no {rest[0]}"


def _not_its_own(text: str, arguments: list[str]) -> Iterator[str]:
    """Words that a script has no case for: options, their values, verbs and what follows a verb are its own."""
    labels = {label.strip() for line in _LABELS.findall(text) for label in line.split("|")}
    labels |= set(re.findall(r"== (--[\w-]+)", text))
    value_follows = verb = False
    for word in arguments:
        option = word.partition("=")[0]
        if value_follows:
            value_follows = False
        elif word == "--" and "-- " in text:
            return  # the rest is another program's
        elif option.startswith("--") and (option in labels or f"{option}=*" in labels):
            takes = re.search(rf"^ *{option}\)(.*?);;", text, re.M | re.S)
            value_follows = word == option and takes is not None and '"$2"' in takes[1]
        elif not word.startswith("-") and (verb or word in labels):
            verb = True
        else:
            yield word
