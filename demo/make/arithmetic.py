"""Sums and differences of two numbers up to two digits: wordings, worked reasoning, answers."""

from __future__ import annotations

from functools import cache
from random import Random

from demo.make.split import pair_held_out

SUM_WORDINGS = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "{a}+{b}=",
    "Compute {a} + {b}.",
    "Calculate {a} plus {b}.",
    "What is {a} plus {b}?",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "what's {a} + {b}",
    "Please work out {a} + {b}.",
    "Tell me what {a} + {b} is.",
)
DIFFERENCE_WORDINGS = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "{a}-{b}=",
    "Compute {a} - {b}.",
    "Calculate {a} minus {b}.",
    "What is {a} minus {b}?",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Take {b} away from {a}.",
    "what's {a} - {b}",
    "Please work out {a} - {b}.",
    "Tell me what {a} - {b} is.",
)
SUFFIXES = ("",) * 12 + (" Answer with a number.", " Reply with the number only.", " Thanks!", " Answer briefly.")


def question(operation: str, a: int, b: int, random: Random) -> str:
    """One of the wordings; operation is "+" or "-"."""
    wordings = SUM_WORDINGS if operation == "+" else DIFFERENCE_WORDINGS
    return random.choice(wordings).format(a=a, b=b) + random.choice(SUFFIXES)


def answer(operation: str, a: int, b: int) -> int:
    """The number asked for."""
    return a + b if operation == "+" else a - b


def reasoning(operation: str, a: int, b: int) -> str:
    """The worked steps, digit by digit, ones first; one fixed text for each problem."""
    start = f"{a} {operation} {b}. "
    if operation == "+":
        ones = a % 10 + b % 10
        carry = ones // 10
        tens = a // 10 + b // 10 + carry
        return (
            f"{start}Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10} + {carry} = {tens}. "
            f"Answer: {a + b}"
        )
    if a < b:
        start += f"{a} < {b}, so -({b} - {a}). "
    high, low = max(a, b), min(a, b)
    borrow = int(high % 10 < low % 10)
    ones = high % 10 + 10 * borrow
    return (
        f"{start}Ones: {ones} - {low % 10} = {ones - low % 10}. "
        f"Tens: {high // 10} - {low // 10} - {borrow} = {high // 10 - low // 10 - borrow}. Answer: {a - b}"
    )


def draw(random: Random, held_out: bool) -> tuple[str, int, int]:
    """A problem of the wanted side of the split. Borrowing and short numbers are drawn as they fall."""
    while True:
        a, b = random.randrange(100), random.randrange(100)
        if random.random() < 0.15:
            a = random.randrange(10)
        if random.random() < 0.15:
            b = random.randrange(10)
        if pair_held_out(a, b) == held_out:
            return random.choice("+-"), a, b


@cache
def held_out_problems() -> list[tuple[str, int, int]]:
    """Every problem that is never trained on, in a fixed order."""
    return [(op, a, b) for op in "+-" for a in range(100) for b in range(100) if pair_held_out(a, b)]
