"""Maker of the demo checkpoint: data, tokenizer, training, export and evaluation."""
