"""Entry of `make docs-check`: holds every document of the tree against what it speaks of.

    commands    parsed by bash, then by the parser of the program that they call; cheap ones are run
    links       targets, and files, variables and options that are named, exist
    numbers     what stands beside a result is what the result file says (docs_numbers, docs_quotes)
    messages    errors that are quoted stand in the code
    settings    tables of settings name each of them once
    figures     drawings are those that docs_figures draws

Exit status: 0 everything holds, 1 faults (one line each: file, line, what).
"""

from __future__ import annotations

import argparse
import sys
import time

import docs_commands
import docs_figures
import docs_links
import docs_messages
import docs_numbers
import docs_settings
from docs_source import Document, Fault, documents


def faults(documents: list[Document], run: bool = True) -> list[Fault]:
    """Everything that is wrong, in the order of documents and lines."""
    found: list[Fault] = []
    for document in documents:
        found += docs_links.faults(document)
        found += docs_commands.faults(document, run)
        found += docs_numbers.faults(document)
        found += docs_messages.faults(document)
    found += docs_settings.faults(documents)
    found += docs_figures.faults()
    return sorted(found, key=lambda fault: (fault.path, fault.line))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make docs-check", description="Hold the documents against the tree. Exit status: 0 they agree, 1 not."
    )
    parser.add_argument("--draw", action="store_true", help="write the figures again, then check")
    options = parser.parse_args(arguments)
    if options.draw:
        docs_figures.write()
    start = time.perf_counter()
    every = documents()
    found = faults(every)
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        blocks = sum(len(document.blocks) for document in every)
        print(f"docs: {len(every)} documents, {blocks} blocks of code: clean ({time.perf_counter() - start:.1f} s)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
