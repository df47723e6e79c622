"""The verbs of ``moet cache``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from . import admin, contents
from .progress import Progress


def add_parser(commands: Any) -> None:
    """Add ``cache`` to the subparsers of ``moet``."""
    caching = commands.add_parser("cache", help="look after the cache of ready planes")
    verbs = caching.add_subparsers(required=True, metavar="VERB")
    for name, run, what in (
        ("ls", _list, "list what is there: for which checkpoint, how big, when last used"),
        ("verify", _verify, "read every payload and hold it against its digest"),
        ("prune", _prune, "remove one, unless a server uses it or it holds something foreign"),
        ("export", _export, "copy one to another folder, whole or not at all"),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("root", type=Path, help="the folder in VLLM_MOE_W2_PLANES_CACHE")
        if name != "ls":
            verb.add_argument("name", help="the beginning of a cache's name, as ls prints it")
        if name == "export":
            verb.add_argument("target", type=Path, help="folder to copy it to")
        verb.set_defaults(run=run)


def _list(args: argparse.Namespace) -> int:
    found = admin.entries(args.root)
    for entry in found:
        key = entry.key
        used = "in use" if entry.in_use else f"used {admin.age(entry.used_unix)}"
        print(
            f"{entry.directory.name}  {len(entry.layers)} of {key.get('layers', '?')} layers, {entry.nbytes:,} bytes, "
            f"rank {key.get('tp_rank', '?')} of {key.get('tp_size', '?')}, quantizer {key.get('quantizer_abi', '?')}, "
            f"checkpoint {str(key.get('checkpoint', '?'))[:12]} ({key.get('source') or 'unknown place'}), {used}"
        )
        _note_foreign(entry)
    if not found:
        print(f"moet: note: {contents.why_none(args.root)}", file=sys.stderr)
    elif others := contents.others(args.root):
        print(f"moet: note: no caches, and left alone: {contents.few(others)}", file=sys.stderr)
    return 0


def _verify(args: argparse.Namespace) -> int:
    entry = admin.find(args.root, args.name)
    _note_foreign(entry)
    with _progress("verify", entry) as progress:
        problems = admin.verify(entry, progress.add)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{entry.directory}: {len(entry.layers)} layers verified")
    return 1 if problems else 0


def _prune(args: argparse.Namespace) -> int:
    entry = admin.find(args.root, args.name)
    admin.prune(entry)
    print(f"{entry.directory}: removed, {entry.nbytes:,} bytes")
    return 0


def _export(args: argparse.Namespace) -> int:
    entry = admin.find(args.root, args.name)
    _note_foreign(entry)
    with _progress("verify before export", entry) as progress:
        copied = admin.export(entry, args.target, progress.add)
    print(copied)
    return 0


def _note_foreign(entry: admin.Entry) -> None:
    if strangers := contents.foreign(entry.directory):
        told = f"cache {entry.directory.name} also holds {contents.few(strangers)}, which no server wrote; left alone"
        print(f"moet: note: {told}", file=sys.stderr)


def _progress(what: str, entry: admin.Entry) -> Progress:
    return Progress(what, len(entry.layers), entry.nbytes, sys.stderr, partial(print, file=sys.stderr))
