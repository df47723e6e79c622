"""Runs the corpus through a served model: the server is made to say each output, and parses its own words.

Works on any vLLM endpoint, whatever the model: a structured-output `choice` with one entry leaves it nothing else to
say. Thinking is switched off in the prompt, so an output that thinks starts with its think tag instead.
"""

from __future__ import annotations

from typing import Any

from validation.dsml_cases import Answer, Case

THINK, END_THINK = "<think>", "</think>"


def forced_text(case: Case) -> str | None:
    """What the model must be made to say in chat mode, or None where chat mode cannot show the case."""
    if not case.thinking:
        return case.output or None
    before, end, after = case.output.partition(END_THINK)
    if end and not before:
        return after or None
    return f"{THINK}{case.output}" if case.output else None


def ask(client: Any, model: str, case: Case, text: str, *, stream: bool) -> Answer:
    """One request. ``client`` is the official openai client."""
    options: dict[str, Any] = {}
    if case.tools:
        options["tools"] = case.tools
    if case.tool_choice is not None:
        options["tool_choice"] = case.tool_choice
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say it."}],
        temperature=0,
        max_tokens=2048,
        stream=stream,
        extra_body={
            "structured_outputs": {"choice": [text]},
            "chat_template_kwargs": {"thinking": False},
        },
        **options,
    )
    if stream:
        return gather(answer)
    message = answer.choices[0].message
    calls = tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ())
    return Answer(_reasoning(message), message.content or None, calls)


def gather(stream: Any) -> Answer:
    """What a client has after a stream."""
    reasoning, content, calls, pieces = "", "", [], 0
    for chunk in stream:
        for choice in chunk.choices:
            reasoning += _reasoning(choice.delta) or ""
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                while len(calls) <= call.index:
                    calls.append(["", ""])
                calls[call.index][0] += call.function.name or ""
                calls[call.index][1] += call.function.arguments or ""
                pieces += bool(call.function.arguments)
    return Answer(reasoning or None, content or None, tuple((n, a) for n, a in calls), pieces)


def _reasoning(part: object) -> str | None:
    return getattr(part, "reasoning", None) or getattr(part, "reasoning_content", None) or None


def run(client: Any, model: str, case: Case) -> dict[str, list[str]] | None:
    """The faults of a case by mode, or None where this way of asking cannot show it."""
    text = forced_text(case)
    forced_choice = case.tool_choice not in (None, "auto", "none")
    if text is None or forced_choice:
        return None  # a forced tool choice brings a grammar of its own
    found: dict[str, list[str]] = {}
    for mode in ("whole", "tokens"):
        try:
            answer = ask(client, model, case, text, stream=mode == "tokens")
        except Exception as error:  # an error answer is a finding, not the end of the run
            found[mode] = [f"{type(error).__name__}: {error}"]
        else:
            found[mode] = case.faults(answer, streamed=mode == "tokens")
    return found
