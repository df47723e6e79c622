"""Log-probabilities of given tokens by one engine, in several batch shapes.

A greedy engine never gives a token that it would not choose. What it thinks of one is read in two ways:

* a whole answer is read as part of the prompt, whose log-probabilities are asked for (:func:`read`);
* one place of an answer is stepped on (:func:`step`): everything before it is the prompt and one token is asked for (a
  prefill), or everything but the last token is the prompt, only that last one is allowed, and the step after it is
  looked at (a decode). Log-probabilities are vLLM's raw ones, from before anything is forbidden. Both are done one
  place at a time and as many at a time as the engine takes: four shapes (:data:`SHAPES`) that run other kernels, tiles
  and splits.
"""

from __future__ import annotations

import math
from typing import Any

SHAPES = ("prefill alone", "prefill together", "decode alone", "decode together")
LIKELIEST = 20
"""Alternatives whose log-probabilities are asked for; vLLM gives no more unless told to."""

Place = tuple[list[int], int]
"""The tokens before it, prompt included, and the token that was taken."""


def read(llm: Any, prompts: list[list[int]], answers: list[list[int]]) -> list[list[float]]:
    """By how many nats each token of each answer is behind the likeliest one there, all answers read as prompts.

    Args:
        llm: a vLLM engine without speculation.
        prompts: token ids.
        answers: token ids, for each prompt.
    """
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False, prompt_logprobs=2)
    asked = [{"prompt_token_ids": prompt + answer} for prompt, answer in zip(prompts, answers, strict=True)]
    found = []
    for prompt, answer, output in zip(prompts, answers, llm.generate(asked, sampling, use_tqdm=False), strict=True):
        entries = output.prompt_logprobs[len(prompt) :]
        found.append([behind(values(entry), token)[0] for entry, token in zip(entries, answer, strict=True)])
    return found


def step(llm: Any, places: list[Place]) -> list[dict[str, tuple[float, bool]]]:
    """What :func:`behind` says of the token of each place, in each of :data:`SHAPES`."""
    found: list[dict[str, tuple[float, bool]]] = [{} for _ in places]
    for kind, entries in (("prefill", _prefills), ("decode", _decodes)):
        alone = [entries(llm, [place])[0] for place in places]
        together = entries(llm, places)
        for shape, likeliest in ((f"{kind} alone", alone), (f"{kind} together", together)):
            for one, (_, token), entry in zip(found, places, likeliest, strict=True):
                one[shape] = behind(entry, token)
    return found


def behind(likeliest: dict[int, float], token: int) -> tuple[float, bool]:
    """Nats by which a token is behind the likeliest one, and whether it is listed; if not, it is at least so many.

    Args:
        likeliest: log-probabilities by token: the :data:`LIKELIEST`, and the one that was sampled, however unlikely.
        token: the one in question.

    Raises:
        ValueError: nothing but one token was possible, so these are not raw log-probabilities.
    """
    finite = sorted((value for value in likeliest.values() if math.isfinite(value)), reverse=True)
    if len(finite) < 2:
        raise ValueError(f"log-probabilities of {len(finite)} tokens are finite; the engine must give raw ones")
    return finite[0] - likeliest.get(token, finite[:LIKELIEST][-1]), token in likeliest


def values(entry: dict[int, Any]) -> dict[int, float]:
    """Log-probabilities by token of what vLLM gives for one place."""
    return {token: one.logprob for token, one in entry.items()}


def _prefills(llm: Any, places: list[Place]) -> list[dict[int, float]]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False, logprobs=LIKELIEST)
    outputs = llm.generate([{"prompt_token_ids": before} for before, _ in places], sampling, use_tqdm=False)
    return [values(output.outputs[0].logprobs[0]) for output in outputs]


def _decodes(llm: Any, places: list[Place]) -> list[dict[int, float]]:
    from vllm import SamplingParams

    forced = {"temperature": 0, "max_tokens": 2, "ignore_eos": True, "detokenize": False, "logprobs": LIKELIEST}
    samplings = [SamplingParams(**forced, allowed_token_ids=[before[-1]]) for before, _ in places]
    outputs = llm.generate([{"prompt_token_ids": before[:-1]} for before, _ in places], samplings, use_tqdm=False)
    return [values(output.outputs[0].logprobs[1]) for output in outputs]
