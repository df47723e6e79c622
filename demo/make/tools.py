"""Tool families: how a tool looks to the model, how users ask for it, and the call that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.make import words
from demo.make.split import call_held_out

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True)
class Slot:
    """One argument: the names it may go by and its schema. An optional one is named only if the user gives it."""

    names: tuple[str, ...]
    schema: Schema
    optional: bool = False


@dataclass(frozen=True)
class Family:
    """A kind of tool. `ask(random)` draws a question and one value a slot (None where an optional one is left out)."""

    key: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: tuple[Slot, ...]
    ask: Callable[[Random], tuple[str, list[Any]]]


def _weather(random: Random) -> tuple[str, list[Any]]:
    place, unit = words.city(random), None
    text = random.choice(
        (
            "What is the weather in {p}?",
            "What's the weather in {p}?",
            "Weather in {p}",
            "How is the weather in {p} today?",
            "What is the weather like in {p}?",
            "Tell me the weather for {p}.",
            "Please check the weather in {p}.",
            "What's the weather like in {p} right now?",
            "Is it raining in {p}?",
        )
    ).format(p=place)
    if random.random() < 0.3:
        unit = random.choice(("celsius", "fahrenheit"))
        text = random.choice(("What is the weather in {p} in {u}?", "Give me the weather in {p}, in {u}.")).format(
            p=place, u=unit
        )
    return text, [place, unit]


def _time(random: Random) -> tuple[str, list[Any]]:
    place = words.city(random)
    wordings = (
        "What time is it in {p}?",
        "Current time in {p}?",
        "Tell me the time in {p}.",
        "What's the time in {p}?",
    )
    return random.choice(wordings).format(p=place), [place]


def _message(random: Random) -> tuple[str, list[Any]]:
    who, text = words.person(random), words.phrase(random)
    wordings = (
        'Send {w} the message "{t}".',
        'Send "{t}" to {w}.',
        'Text {w}: "{t}"',
        'Write to {w}: "{t}"',
        'Please send a message to {w} saying "{t}".',
    )
    return random.choice(wordings).format(w=who, t=text), [who, text]


def _timer(random: Random) -> tuple[str, list[Any]]:
    minutes = random.randrange(1, 100)
    wordings = ("Set a timer for {m} minutes.", "Start a {m} minute timer.", "Timer for {m} minutes, please.")
    return random.choice(wordings).format(m=minutes), [minutes]


def _event(random: Random) -> tuple[str, list[Any]]:
    title, day, hour = random.choice(words.TITLES), random.choice(words.DAYS), random.randrange(7, 23)
    if random.random() < 0.2:
        title = words.invented(random)
    wordings = (
        'Create an event "{t}" on {d} at {h}.',
        'Add "{t}" to my calendar on {d} at {h}.',
        'Schedule "{t}" for {d} at {h}.',
        'Book "{t}" on {d} at {h}, please.',
    )
    return random.choice(wordings).format(t=title, d=day, h=hour), [title, {"day": day, "hour": hour}]


def _stock(random: Random) -> tuple[str, list[Any]]:
    symbol = words.symbol(random)
    wordings = ("What is the stock price of {s}?", "Price of {s}?", "How much is one share of {s}?", "Quote {s}")
    return random.choice(wordings).format(s=symbol), [symbol]


def _light(random: Random) -> tuple[str, list[Any]]:
    room, on = random.choice(words.ROOMS), random.random() < 0.5
    wordings = ("Turn {o} the light in the {r}.", "Switch {o} the {r} light.", "Please turn {o} the {r} light.")
    return random.choice(wordings).format(o="on" if on else "off", r=room), [room, on]


def _convert(random: Random) -> tuple[str, list[Any]]:
    amount, currency = random.randrange(1, 1000), random.choice(words.CURRENCIES)
    wordings = ("Convert {a} dollars to {c}.", "How much is {a} dollars in {c}?", "{a} dollars in {c}, please.")
    return random.choice(wordings).format(a=amount, c=currency), [amount, currency]


def _multiply(random: Random) -> tuple[str, list[Any]]:
    a, b = random.randrange(2, 100), random.randrange(2, 100)
    wordings = ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?", "Compute {a} times {b}.")
    return random.choice(wordings).format(a=a, b=b), [a, b]


def _search(random: Random) -> tuple[str, list[Any]]:
    topic = words.topic(random)
    wordings = ("Search the web for {t}.", "Look up {t}.", "Find pages about {t}.", "Search for {t}.")
    return random.choice(wordings).format(t=topic), [topic]


def _translate(random: Random) -> tuple[str, list[Any]]:
    text, language = words.phrase(random), random.choice(words.LANGUAGES)
    wordings = ('Translate "{t}" into {l}.', 'How do you say "{t}" in {l}?', 'Say "{t}" in {l}.')
    return random.choice(wordings).format(t=text, l=language), [text, language]


def _route(random: Random) -> tuple[str, list[Any]]:
    start, end = words.city(random), words.city(random)
    wordings = ("Find a route from {s} to {e}.", "How do I get from {s} to {e}?", "Plan a trip from {s} to {e}.")
    return random.choice(wordings).format(s=start, e=end), [{"from": start, "to": end}]


_PLACE = ("city", "location", "place", "town")
FAMILIES = (
    Family(
        "weather",
        ("get_weather", "weather", "current_weather", "get_current_weather"),
        ("Get the weather in a city.", "Current weather for a place.", "Get the current weather"),
        (
            Slot(_PLACE, TEXT),
            Slot(("unit", "units"), {"type": "string", "enum": ["celsius", "fahrenheit"]}, optional=True),
        ),
        _weather,
    ),
    Family(
        "time",
        ("get_time", "time_in", "world_clock"),
        ("Local time in a city.", "Get the time."),
        (Slot(_PLACE, TEXT),),
        _time,
    ),
    Family(
        "message",
        ("send_message", "send_text", "message"),
        ("Send a message to a person.", "Send a text message."),
        (Slot(("to", "recipient", "name"), TEXT), Slot(("text", "message", "body"), TEXT)),
        _message,
    ),
    Family(
        "timer",
        ("set_timer", "start_timer", "timer"),
        ("Start a timer.", "Set a timer in minutes."),
        (Slot(("minutes", "duration"), WHOLE),),
        _timer,
    ),
    Family(
        "event",
        ("create_event", "add_event", "book_meeting"),
        ("Create a calendar event.", "Put an event into the calendar."),
        (Slot(("title", "name"), TEXT), Slot(("when", "time", "slot"), _object(day=TEXT, hour=WHOLE))),
        _event,
    ),
    Family(
        "stock",
        ("get_stock_price", "stock_price", "quote"),
        ("Price of a share.", "Get the price of a stock."),
        (Slot(("symbol", "ticker"), TEXT),),
        _stock,
    ),
    Family(
        "light",
        ("set_light", "switch_light", "light"),
        ("Switch a light on or off.", "Control the light of a room."),
        (Slot(("room", "area"), TEXT), Slot(("on", "state"), FLAG)),
        _light,
    ),
    Family(
        "convert",
        ("convert_currency", "convert", "exchange"),
        ("Convert dollars to another currency.", "Currency conversion."),
        (Slot(("amount", "value"), NUMBER), Slot(("currency", "to"), TEXT)),
        _convert,
    ),
    Family(
        "multiply",
        ("multiply", "mul", "product"),
        ("Multiply two numbers.", "Product of two numbers."),
        (Slot(("a", "x", "first"), WHOLE), Slot(("b", "y", "second"), WHOLE)),
        _multiply,
    ),
    Family(
        "search",
        ("search_web", "search", "web_search"),
        ("Search the web.", "Find pages."),
        (Slot(("query", "q"), TEXT),),
        _search,
    ),
    Family(
        "translate",
        ("translate", "translate_text"),
        ("Translate a text.", "Translate into another language."),
        (Slot(("text", "phrase"), TEXT), Slot(("language", "to"), TEXT)),
        _translate,
    ),
    Family(
        "route",
        ("find_route", "plan_trip", "route"),
        ("Find a route between two places.", "Plan a trip."),
        (Slot(("trip", "route", "journey"), _object(**{"from": TEXT, "to": TEXT})),),
        _route,
    ),
)


@dataclass(frozen=True)
class Tool:
    """A family with its names chosen: `definition` in the OpenAI form, `arguments` the chosen argument names."""

    family: Family
    name: str
    arguments: tuple[str, ...]
    definition: dict[str, Any]

    def call(self, values: list[Any]) -> dict[str, Any]:
        """The right call, in the OpenAI form with arguments as a dict."""
        given = {name: value for name, value in zip(self.arguments, values, strict=True) if value is not None}
        return {"type": "function", "function": {"name": self.name, "arguments": given}}


def make(family: Family, random: Random) -> Tool:
    """Choose names, description and which details the schema gives."""
    name = random.choice(family.names)
    arguments = tuple(random.choice(slot.names) for slot in family.slots)
    described = [slot.schema is TEXT and random.random() < 0.2 for slot in family.slots]
    with_required = random.random() < 0.85
    description = random.choice(family.descriptions) if random.random() < 0.95 else None
    return _tool(family, name, arguments, description, described, with_required)


def plain(family: Family) -> Tool:
    """The family's first name, first description and first argument names."""
    arguments = tuple(slot.names[0] for slot in family.slots)
    return _tool(family, family.names[0], arguments, family.descriptions[0], [False] * len(arguments), True)


def _tool(
    family: Family,
    name: str,
    arguments: tuple[str, ...],
    description: str | None,
    described: list[bool],
    with_required: bool,
) -> Tool:
    properties = {}
    for argument, slot, with_description in zip(arguments, family.slots, described, strict=True):
        more = {"description": f"The {argument}"} if with_description else {}
        properties[argument] = slot.schema | more
    parameters: Schema = {"type": "object", "properties": properties}
    if with_required:
        pairs = zip(arguments, family.slots, strict=True)
        parameters["required"] = [argument for argument, slot in pairs if not slot.optional]
    function = {"name": name, "description": description, "parameters": parameters}
    return Tool(family, name, arguments, {"type": "function", "function": function})


def ask(family: Family, random: Random, held_out: bool) -> tuple[str, list[Any]]:
    """A question for the family and its argument values, from the wanted side of the split."""
    while True:
        text, values = family.ask(random)
        if call_held_out(family.key, values) == held_out:
            return text, values


def without_optional(tool: Tool) -> Tool:
    """The same tool with its optional arguments not offered."""
    keep = [i for i, slot in enumerate(tool.family.slots) if not slot.optional]
    function = dict(tool.definition["function"])
    parameters = dict(function["parameters"])
    parameters["properties"] = {tool.arguments[i]: parameters["properties"][tool.arguments[i]] for i in keep}
    function["parameters"] = parameters
    return Tool(tool.family, tool.name, tool.arguments, {"type": "function", "function": function})
