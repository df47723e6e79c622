"""An engine of made-up logits whose rounding depends on its batch shape, in the place of vLLM's."""

import math
import random
import sys
from types import SimpleNamespace

import pytest

VOCABULARY = 30


def logits(context: list[int], shape: str, noise: float = 0.1) -> list[float]:
    """Of each token: a function of the whole context, but for noise that is one of the shape too."""
    base, off = random.Random(f"{context}"), random.Random(f"{context} {shape}")
    wide = noise * (10 if base.random() < 0.03 else 1)  # somewhere a router nearly ties
    return [base.gauss(0, 4) + off.gauss(0, wide) for _ in range(VOCABULARY)]


def logprobs(context: list[int], shape: str) -> dict[int, float]:
    values = logits(context, shape)
    whole = math.log(sum(map(math.exp, values)))
    return {token: value - whole for token, value in enumerate(values)}


def likeliest(context: list[int], shape: str, count: int, also: int | None = None) -> dict[int, SimpleNamespace]:
    found = logprobs(context, shape)
    kept = sorted(found, key=found.__getitem__, reverse=True)[:count] + ([] if also is None else [also])
    return {token: SimpleNamespace(logprob=found[token]) for token in kept}


def decode(prompt: list[int], tokens: int, shape: str = "verification", wrong_every: int = 0) -> list[int]:
    """A greedy answer; ``wrong_every``: of so many places one takes the second likeliest token, at random."""
    made, chosen = [], random.Random(f"{prompt}")
    for _ in range(tokens):
        found = logprobs(prompt + made, shape)
        first, second = sorted(found, key=found.__getitem__, reverse=True)[:2]
        made.append(second if wrong_every and chosen.randrange(wrong_every) == 0 else first)
    return made


class Engine:
    """What greedy_shapes and dspark_equality ask of ``vllm.LLM``; ``asked`` counts the prompts."""

    def __init__(self, masked: bool = False) -> None:
        self.masked, self.asked = masked, 0

    def generate(self, prompts: list[dict], sampling, use_tqdm: bool) -> list[SimpleNamespace]:
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        batch = "alone" if len(prompts) == 1 else "together"
        self.asked += len(prompts)
        return [self._one(one["prompt_token_ids"], how, batch) for one, how in zip(prompts, each, strict=True)]

    def _one(self, prompt: list[int], how: SimpleNamespace, batch: str) -> SimpleNamespace:
        tokens, entries = [], []
        for number in range(how.max_tokens):
            context, shape = prompt + tokens, f"{'decode' if number else 'prefill'} {batch}"
            found = logprobs(context, shape)
            allowed = getattr(how, "allowed_token_ids", None) or list(found)
            tokens.append(max(allowed, key=found.__getitem__))
            entries.append(likeliest(context, shape, getattr(how, "logprobs", 1), tokens[-1]))
            if self.masked:
                entries[-1] = {tokens[-1]: SimpleNamespace(logprob=0.0)}
        read = None
        if getattr(how, "prompt_logprobs", None):
            places = range(1, len(prompt))
            read = [None] + [likeliest(prompt[:place], "read", how.prompt_logprobs, prompt[place]) for place in places]
        return SimpleNamespace(prompt_logprobs=read, outputs=[SimpleNamespace(token_ids=tokens, logprobs=entries)])


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Let ``from vllm import SamplingParams`` give a plain record."""
    patch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
