"""Write a checkpoint in the official layout: python -m demo.make.export --out DIR makes an untrained one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from demo.make import checkpoint, data, tokenizer
from demo.make.geometry import official_config
from demo.make.model import Weights, initial_weights


def write(masters: Weights, directory: Path) -> int:
    """Quantise master weights and write shards, index and config.json; returns the bytes of all tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(official_config(), indent=2) + "\n")
    return checkpoint.write(directory, checkpoint.to_official(masters))


def main(argv: list[str] | None = None) -> None:
    """An untrained checkpoint, complete with tokenizer: enough to develop a server against."""
    parser = argparse.ArgumentParser(prog="python -m demo.make.export", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--corpus", type=int, default=9000, help="conversations that the tokenizer is learnt from")
    options = parser.parse_args(argv)
    tokenizer.save(tokenizer.train(data.corpus(options.seed, options.corpus)), options.out)
    print(f"{write(initial_weights(options.seed), options.out)} bytes of tensors in {options.out}")


if __name__ == "__main__":
    main()
