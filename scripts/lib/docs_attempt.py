"""Running a Python program until it has parsed its arguments, and calls that must leave no trace."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import docs_links
import docs_stubs
from docs_source import ROOT


class _Parsed(BaseException):
    """Arguments were taken; the program goes no further."""


@cache
def script_text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def _parses(path: str) -> bool:
    """Whether a program, or a module of this tree that it imports, parses arguments: otherwise it would really run."""
    text = script_text(path)
    if "parse_args(" in text:
        return True
    packages = re.findall(r"^from ([\w.]+) import ([\w, ]+)$", text, re.M)
    modules = [f"{package}.{name.strip()}" for package, names in packages for name in names.split(",")]
    files = [module.replace(".", "/") + ".py" for module in (*modules, *(package for package, _ in packages))]
    return any("parse_args(" in script_text(file) for file in files if docs_links.exists(file))


def parsed(program: str, arguments: list[str]) -> Iterator[str]:
    """Why a Python program would not take some arguments; by its file, or its module's name."""
    path = program if program.endswith(".py") else program.replace(".", "/") + ".py"
    if not docs_links.exists(path):
        yield f"{path} is not in the tree"
        return
    if not _parses(path):
        # It reads its words by itself: the verb and the options must at least be among its literals.
        literals = set(re.findall(r"""["']([\w-]+)["']""", script_text(path)))
        words = [word for number, word in enumerate(arguments) if number == 0 or word.startswith("-")]
        yield from (f"{path} knows no {word}" for word in words if word not in literals)
        return

    if "--" in arguments:  # what follows belongs to a program that is started
        arguments = arguments[: arguments.index("--")]
    parser, error = parser_of(program, path)
    if parser is not None:
        status, error = attempt(lambda: parser.parse_args(arguments) and 0)
        if not status:
            return
    yield error


@cache
def parser_of(program: str, path: str) -> tuple[argparse.ArgumentParser | None, str]:
    """The parser that a program makes, or None and why it makes none. Runs the program until it would parse."""
    made: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, *given: object, **named: object) -> None:
        made.append(parser)
        raise _Parsed

    def run() -> None:
        if program.endswith(".py"):
            runpy.run_path(str(ROOT / path), run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=False)

    before, real = (sys.argv, list(sys.path)), argparse.ArgumentParser.parse_args
    sys.argv, sys.path[:0] = [path], [str(ROOT), str((ROOT / path).parent)]
    argparse.ArgumentParser.parse_args = stop
    try:
        with docs_stubs.installed():
            _, error = attempt(run)
    finally:
        argparse.ArgumentParser.parse_args = real
        sys.argv, sys.path[:] = before
    return (made[0] if made else None), error


def attempt(call: Callable[[], object], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit status, last line of stderr) of a call, its output kept to itself, from the tree's root."""
    errors, before, folder = io.StringIO(), dict(os.environ), Path.cwd()
    os.environ.update(environment or {})
    os.chdir(ROOT)
    status: object = 0
    shortened = argparse.ArgumentParser._get_option_tuples
    argparse.ArgumentParser._get_option_tuples = lambda self, option: []  # a document spells options out
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = call()
    except _Parsed:
        status = 0
    except SystemExit as error:
        status = error.code
    except Exception as error:  # what a document tells a reader to type must not end in a traceback
        return 1, f"{type(error).__name__}: {error}"
    finally:
        argparse.ArgumentParser._get_option_tuples = shortened
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
    lines = errors.getvalue().strip().splitlines() or ["no message"]
    return (status if isinstance(status, int) else 0), lines[-1]
