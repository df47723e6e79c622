"""The fixed held-out conversations that every measurement draws on; needs neither torch nor a checkpoint."""

from __future__ import annotations

from random import Random

from demo.make import arithmetic, data, tools

KINDS = ("arithmetic", "arithmetic, thinking off", "plain call", "call", "after result", "no tool", "several turns")


def held_out_arithmetic(random: Random, thinking: bool) -> data.Sample:
    """A held-out problem in a drawn wording, every operand pair as likely as any other."""
    operation, a, b = random.choice(arithmetic.held_out_problems())
    question = {"role": "user", "content": arithmetic.question(operation, a, b, random)}
    target = {
        "role": "assistant",
        "reasoning": arithmetic.reasoning(operation, a, b),
        "content": str(arithmetic.answer(operation, a, b)),
    }
    return data.Sample("arithmetic", [question], None, thinking, "high", target)


def plain_call(random: Random) -> data.Sample:
    """A held-out question to the one tool that is given, with its usual names and no system prompt."""
    family = random.choice(tools.FAMILIES)
    tool = tools.plain(family)
    text, values = tools.ask(family, random, held_out=True)
    target = data.calling([tool.call(values)])
    return data.Sample("call", [{"role": "user", "content": text}], [tool.definition], True, "high", target)


def samples(kind: str, count: int) -> list[data.Sample]:
    """A fixed set of held-out conversations of a kind."""
    random = Random(f"held out {kind}")
    if kind.startswith("arithmetic"):
        return [held_out_arithmetic(random, thinking=not kind.endswith("off")) for _ in range(count)]
    if kind == "plain call":
        return [plain_call(random) for _ in range(count)]
    return [data.sample(kind, random, held_out=True) for _ in range(count)]
