"""Training batches: padded token ids and the positions whose next token is learnt, each drawn from (seed, step)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.utils.data import Dataset

from demo.make import data, tokenizer
from demo.make.geometry import official_config

PAD: int = official_config()["pad_token_id"]


@dataclass(frozen=True)
class Bucket:
    """One shape of batch: `rows` conversations of `shortest` < length <= `length` tokens, every `every` steps."""

    with_tools: bool
    shortest: int
    length: int
    rows: int
    every: int = 1


BUCKETS = (
    Bucket(False, 0, 192, 256),
    Bucket(True, 0, 640, 64),
    Bucket(False, 192, 384, 64, every=4),
    Bucket(True, 640, 960, 32, every=4),
)


@dataclass(frozen=True)
class Batch:
    """tokens [rows, length] int64; learn [rows, length] bool: position t predicts token t + 1 of an answer."""

    tokens: torch.Tensor
    learn: torch.Tensor


def encode(coder: Tokenizer, text: str) -> list[int]:
    """Token ids of rendered text, nothing added."""
    return coder.encode(text, add_special_tokens=False).ids


def pad(pairs: list[tuple[list[int], list[int]]], length: int) -> Batch:
    """Lay (prompt, answer) token ids out as rows padded on the right."""
    tokens = torch.full((len(pairs), length), PAD, dtype=torch.long)
    learn = torch.zeros((len(pairs), length), dtype=torch.bool)
    for row, (prompt, answer) in enumerate(pairs):
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        learn[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = True
    return Batch(tokens, learn)


class Steps(Dataset):
    """Item n is the list of batches of training step n. `scale` shrinks every batch, for trials."""

    def __init__(
        self, directory: Path, seed: int, steps: int, scale: float = 1.0, buckets: tuple[Bucket, ...] = BUCKETS
    ) -> None:
        self._directory, self._seed, self._steps, self._scale = directory, seed, steps, scale
        self._buckets = buckets
        self._coder: Tokenizer | None = None

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> list[Batch]:
        # Loaded here, once in each process that draws batches.
        if self._coder is None:
            self._coder = tokenizer.load(self._directory)
        random, coder = Random(f"train {self._seed} {step}"), self._coder
        return [self._fill(bucket, random, coder) for bucket in self._buckets if step % bucket.every == 0]

    def _fill(self, bucket: Bucket, random: Random, coder: Tokenizer) -> Batch:
        shares = data.LONG if bucket.with_tools else data.SHORT
        pairs: list[tuple[list[int], list[int]]] = []
        while len(pairs) < max(1, round(bucket.rows * self._scale)):
            sample = data.draw(random, shares, bucket.with_tools)
            prompt, answer = encode(coder, sample.prompt()), encode(coder, sample.reply())
            if bucket.shortest < len(prompt) + len(answer) <= bucket.length:
                pairs.append((prompt, answer))
        return pad(pairs, bucket.length)
