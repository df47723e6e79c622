"""The demo checkpoint: a tiny trained DeepSeek-V4 model in the official layout, and everything that made it."""
