"""The demo's tokenizer: byte-level BPE with DeepSeek-V4's special tokens; every digit is a token of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.make.geometry import VOCABULARY

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"
SPECIAL = (
    BOS,
    EOS,
    PAD,
    USER,
    ASSISTANT,
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)
# Text that is one token but still appears in decoded output: parsers read it there.
VISIBLE = (THINK, END_THINK, DSML)


def train(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from rendered conversations; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(text, normalized=False, special=True) for text in SPECIAL + VISIBLE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_visible(tokenizer)


def _with_visible(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with VISIBLE not special: the trainer marks every token it is given as special."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    return Tokenizer.from_str(json.dumps(content))


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": 16384,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def load(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
