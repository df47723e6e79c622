"""Numbers in documents: each that stands beside a result is quoted from where it is true.

A quote (`docs_quotes.QUOTES`) says which document holds which words, and makes the words from result files, recipes,
pins or code. Two things are faults: words that the document does not hold, and a number that no quote accounts for

    in a paragraph or table that links to a result file, or a table right after one, in any document
    with a unit, anywhere in a document of STRICT

Numbers in code spans, in blocks of code and in names (sm_90a, FP4, DeepSeek-V4) are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import docs_quotes
from docs_source import Document, Fault, Paragraph

STRICT = (
    "README.md",
    "BUILD-AND-RUN.md",
    "HOW-IT-WORKS.md",
    "VALIDATION.md",
    "PROVENANCE.md",
    "docs/metrics.md",
    "docs/planner.md",
)
"""Documents in which every number with a unit is quoted."""
HELD_ELSEWHERE = {
    "demo/CARD.md": "demo/tests/test_card.py",
    "docs/dsml.md": "bench/tests/test_dsml_bench.py",
}
"""Documents whose numbers a test of their own holds."""
NAMES = ("RTX PRO 6000", "96 GB", "GEMM 1", "GEMM 2")
"""Names of things that hold numbers."""
_RESULT = re.compile(r"\]\([^)\s]*results/[^)\s]*\)")
_NUMBER = r"(?<![\w.,/#-])\d[\d,]*(?:\.\d+)?(?![\w/]|-\w|\.\d|,\d)"
_WORDS = "bytes us ms s seconds? minutes? hours? tok/s tokens?(?:/s)? times layers? slots cases"
_UNIT = rf"\s?(?:[KMGT]i?B(?:/s)?|{'|'.join(_WORDS.split())})\b"
_ANY = re.compile(rf"{_NUMBER}%?")
_MEASURED = re.compile(rf"{_NUMBER}(?:{_UNIT}|%)")


def faults(document: Document) -> Iterator[Fault]:
    """Quotes that the document lacks, and numbers that none accounts for."""
    quotes = [quote for quote in docs_quotes.QUOTES if quote.document == document.name]
    held: list[str] = []
    text = " ".join(document.text.split())
    for quote in quotes:
        for words in quote.words():
            held.append(words)
            if words not in text:
                yield document.fault(1, f"does not hold {words!r}, which is what {quote.source} gives")
    if document.name in HELD_ELSEWHERE:
        return
    besides = False
    for paragraph in document.paragraphs:
        # A table belongs to the paragraph before it.
        besides = bool(_RESULT.search(paragraph.text)) or (besides and paragraph.lines[0].startswith("|"))
        if besides or document.name in STRICT:
            yield from _unaccounted(document, paragraph, held, _ANY if besides else _MEASURED)


def _unaccounted(document: Document, paragraph: Paragraph, held: list[str], wanted: re.Pattern[str]) -> Iterator[Fault]:
    rest = paragraph.text
    for words in sorted(held, key=len, reverse=True):
        rest = rest.replace(words, " ")
    for name in NAMES:
        rest = rest.replace(name, " ")
    rest = re.sub(r"`[^`]*`", " ", rest)
    rest = re.sub(r"\]\([^)]*\)", "] ", rest)
    for match in wanted.finditer(rest):
        where = next((n for n, line in enumerate(paragraph.lines, paragraph.line) if match[0] in line), paragraph.line)
        yield document.fault(where, f"no quote accounts for {match[0]!r} (docs_quotes says where numbers are from)")
