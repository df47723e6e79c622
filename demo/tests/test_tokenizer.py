"""The tokenizer keeps text, splits numbers into digits, and is what vLLM's deepseek_v4 mode expects."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from demo.make import data, tokenizer
from demo.make.geometry import VOCABULARY, official_config


@pytest.fixture(scope="module")
def coder(checkpoint_dir: Path):
    """The committed tokenizer."""
    return tokenizer.load(checkpoint_dir)


@pytest.mark.parametrize("kind", sorted(data.KINDS))
def test_round_trip(coder, kind: str) -> None:
    random = Random(kind)
    for _ in range(20):
        sample = data.sample(kind, random)
        text = sample.prompt() + sample.reply()
        ids = coder.encode(text, add_special_tokens=False).ids
        assert coder.decode(ids, skip_special_tokens=False) == text


def test_any_text_survives(coder) -> None:
    text = "Grüße, 東京 \U0001f642\n\t 3.14"
    assert coder.decode(coder.encode(text, add_special_tokens=False).ids) == text


def test_every_digit_is_a_token_of_its_own(coder) -> None:
    digits = [coder.token_to_id(d) for d in "0123456789"]
    assert None not in digits
    ids = coder.encode("9 - 1234567890=37", add_special_tokens=False).ids
    assert [i for i in ids if i in digits] == [digits[int(d)] for d in "9123456789037"]
    assert not [t for t in coder.get_vocab() if len(t) > 1 and any(c.isdigit() for c in t)]


def test_prompt_and_answer_can_be_cut_anywhere_between(coder) -> None:
    sample = data.sample("call", Random(3))
    whole = coder.encode(sample.prompt() + sample.reply(), add_special_tokens=False).ids
    parts = [coder.encode(t, add_special_tokens=False).ids for t in (sample.prompt(), sample.reply())]
    assert whole == parts[0] + parts[1]


def test_ids_and_size_are_those_of_the_config(coder) -> None:
    config = official_config()
    assert coder.get_vocab_size() == VOCABULARY == config["vocab_size"]
    for key, text in (("bos", tokenizer.BOS), ("eos", tokenizer.EOS), ("pad", tokenizer.PAD)):
        assert coder.token_to_id(text) == config[f"{key}_token_id"]


def test_what_parsers_read_is_one_token_and_not_special(checkpoint_dir: Path) -> None:
    added = json.loads((checkpoint_dir / "tokenizer.json").read_text())["added_tokens"]
    special = {token["content"]: token["special"] for token in added}
    assert [special[t] for t in tokenizer.VISIBLE] == [False] * 3
    assert all(special[t] for t in tokenizer.SPECIAL)


def test_the_maker_gives_the_committed_tokenizer(checkpoint_dir: Path, tmp_path: Path) -> None:
    tokenizer.save(tokenizer.train(data.corpus(20, 9000)), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (checkpoint_dir / name).read_bytes()
