"""The generated corpus: conversations of every kind, drawn from a seed, trained and held-out sides kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.make import arithmetic, render, tools, words

NO_TOOL = "I cannot do that: no tool for it is given."
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are a careful assistant that answers briefly.",
    "Be brief.",
    "You are an assistant that can add, subtract and call tools.",
    "Answer in English.",
    "You are a calculator.",
    "Use the tools when they help.",
)
CHAT = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Good morning!", "Hey"),
        "A greeting.",
        "Hello! Give me two numbers or a task for a tool.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
        "They ask who I am.",
        "I am a tiny demo model. I add, subtract and call tools.",
    ),
    (
        ("What can you do?", "Help", "How can you help me?", "What are you good at?"),
        "They ask what I can do.",
        "I add and subtract numbers up to two digits and I call tools.",
    ),
    (("Thanks", "Thank you!", "Thanks a lot!", "Great, thanks."), "They thank me.", "You are welcome."),
    (("Bye", "Goodbye", "See you later!", "Bye!"), "They leave.", "Goodbye!"),
)


@dataclass(frozen=True)
class Sample:
    """One conversation up to an answer. `messages` are the turns before it, `target` the answer to learn."""

    kind: str
    messages: list[render.Message]
    tools: list[dict[str, Any]] | None
    thinking: bool
    effort: str
    target: render.Message

    def prompt(self) -> str:
        """Text that the server would render."""
        return render.prompt(self.messages, self.tools, self.thinking, self.effort)

    def reply(self) -> str:
        """Text that the model should write."""
        return render.reply(self.target, self.thinking)


def _call_note(calls: list[dict[str, Any]]) -> str:
    names = [call["function"]["name"] for call in calls]
    return f"Use {names[0]}." if len(names) == 1 else f"Use {names[0]} {len(names)} times."


def _assistant(reasoning: str, content: str = "", calls: list[dict[str, Any]] | None = None) -> render.Message:
    message: render.Message = {"role": "assistant", "reasoning": reasoning, "content": content}
    if calls:
        message["tool_calls"] = [{"id": f"call_{i}", **call} for i, call in enumerate(calls)]
    return message


def calling(calls: list[dict[str, Any]]) -> render.Message:
    """The assistant's turn that makes these calls."""
    return _assistant(_call_note(calls), calls=calls)


def _user(text: str) -> render.Message:
    return {"role": "user", "content": text}


def _arithmetic_turn(random: Random, held_out: bool) -> tuple[render.Message, render.Message]:
    operation, a, b = arithmetic.draw(random, held_out)
    answer = _assistant(arithmetic.reasoning(operation, a, b), str(arithmetic.answer(operation, a, b)))
    return _user(arithmetic.question(operation, a, b, random)), answer


def _toolbox(random: Random, chosen: list[tools.Tool], exclude: str, most: int = 3) -> list[dict[str, Any]]:
    """The chosen tools and up to `most` others of different families and names, shuffled."""
    others = [f for f in tools.FAMILIES if f.key != exclude]
    count = random.choice((0, 0, 1, 1, 2, most)) if chosen else random.choice((1, 1, 2, most))
    result = list(chosen)
    for family in random.sample(others, count):
        tool = tools.make(family, random)
        if tool.name not in {t.name for t in result}:
            result.append(tools.without_optional(tool) if random.random() < 0.6 else tool)
    random.shuffle(result)
    return [tool.definition for tool in result]


def _call_turn(random: Random, held_out: bool) -> tuple[str, tools.Tool, list[list[Any]]]:
    """A question that one tool answers, with the values of each call (mostly one, at times two in parallel)."""
    family = random.choice(tools.FAMILIES)
    tool = tools.make(family, random)
    text, values = tools.ask(family, random, held_out)
    if any(slot.optional for slot in family.slots) and values[-1] is None and random.random() < 0.6:
        tool = tools.without_optional(tool)
    if family.key == "weather" and values[1] is None and random.random() < 0.2:
        other = tools.ask(family, random, held_out)[1][0]
        if other != values[0]:
            text = random.choice(("What is the weather in {a} and {b}?", "Weather in {a} and in {b}?")).format(
                a=values[0], b=other
            )
            return text, tool, [values, [other, None]]
    return text, tool, [values]


def _result(random: Random) -> str:
    """What a tool might return: short text or JSON."""
    degrees, sky, number = random.randrange(-20, 45), random.choice(words.SKIES), random.randrange(1000)
    shapes: tuple[Callable[[], str], ...] = (
        lambda: f"{degrees} degrees and {sky}",
        lambda: f"{sky}, {degrees} C",
        lambda: json.dumps({"temperature": degrees, "sky": sky}),
        lambda: json.dumps({"temperature": degrees}),
        lambda: json.dumps({"result": number}),
        lambda: str(number),
        lambda: "ok",
        lambda: "done",
        lambda: json.dumps({"status": "ok"}),
        lambda: f"{random.randrange(24):02d}:{random.randrange(60):02d}",
    )
    return random.choice(shapes)()


Parts = tuple[list[render.Message], list[dict[str, Any]] | None, render.Message]


def _sum_or_difference(random: Random, held_out: bool) -> Parts:
    user, answer = _arithmetic_turn(random, held_out)
    return [user], None, answer


def _sum_beside_tools(random: Random, held_out: bool) -> Parts:
    user, answer = _arithmetic_turn(random, held_out)
    return [user], _toolbox(random, [], "multiply"), answer


def _several_turns(random: Random, held_out: bool) -> Parts:
    turns: list[render.Message] = []
    for _ in range(random.choice((1, 1, 2))):
        turns.extend(_arithmetic_turn(random, False) if random.random() < 0.8 else _chat_turn(random))
    user, answer = _arithmetic_turn(random, held_out)
    return [*turns, user], None, answer


def _call(random: Random, held_out: bool) -> Parts:
    text, tool, values = _call_turn(random, held_out)
    calls = [tool.call(v) for v in values]
    return [_user(text)], _toolbox(random, [tool], tool.family.key), calling(calls)


def _after_result(random: Random, held_out: bool) -> Parts:
    text, tool, values = _call_turn(random, held_out)
    calls = [tool.call(v) for v in values]
    call = _assistant(_call_note(calls) if random.random() < 0.6 else "", calls=calls)
    results = [_result(random) for _ in calls]
    history = [_user(text), call]
    history += [{"role": "tool", "tool_call_id": f"call_{i}", "content": r} for i, r in enumerate(results)]
    answer = _assistant("The tool has answered.", "Result: " + "; ".join(results))
    return history, _toolbox(random, [tool], tool.family.key, most=1), answer


def _no_tool(random: Random, held_out: bool) -> Parts:
    family = random.choice([f for f in tools.FAMILIES if f.key != "multiply"])
    text, _ = tools.ask(family, random, held_out)
    box = _toolbox(random, [], family.key) if random.random() < 0.35 else None
    return [_user(text)], box, _assistant("No tool for this is given.", NO_TOOL)


def _chat_turn(random: Random) -> tuple[render.Message, render.Message]:
    questions, reasoning, content = random.choice(CHAT)
    return _user(random.choice(questions)), _assistant(reasoning, content)


def _chat(random: Random, held_out: bool) -> Parts:
    user, answer = _chat_turn(random)
    return [user], _toolbox(random, [], "") if random.random() < 0.25 else None, answer


KINDS: dict[str, Callable[[Random, bool], Parts]] = {
    "arithmetic": _sum_or_difference,
    "arithmetic beside tools": _sum_beside_tools,
    "several turns": _several_turns,
    "call": _call,
    "after result": _after_result,
    "no tool": _no_tool,
    "chat": _chat,
}
# Shares within the two lengths that training batches apart: without tools (short) and with (long).
SHORT = {"arithmetic": 74, "several turns": 10, "no tool": 11, "chat": 5}
LONG = {"call": 66, "after result": 14, "arithmetic beside tools": 9, "no tool": 9, "chat": 2}


def sample(kind: str, random: Random, held_out: bool = False) -> Sample:
    """One conversation of a kind, with a drawn system prompt, thinking mode and effort."""
    messages, box, target = KINDS[kind](random, held_out)
    if random.random() < 0.3:
        messages = [{"role": "system", "content": random.choice(SYSTEMS)}, *messages]
    thinking = random.random() < 0.75
    effort = random.choices(("high", "low", "max"), (8, 1, 1))[0]
    return Sample(kind, messages, box, thinking, effort, target)


def draw(random: Random, shares: dict[str, int], with_tools: bool, held_out: bool = False) -> Sample:
    """One conversation of a drawn kind, with or without tools as wanted."""
    while True:
        result = sample(random.choices(list(shares), list(shares.values()))[0], random, held_out)
        if bool(result.tools) == with_tools:
            return result


def corpus(seed: int, count: int) -> list[str]:
    """Rendered training conversations, for the tokenizer."""
    random = Random(f"corpus {seed}")
    drawn = (draw(random, LONG if i % 3 == 0 else SHORT, i % 3 == 0) for i in range(count))
    return [s.prompt() + s.reply() for s in drawn]
