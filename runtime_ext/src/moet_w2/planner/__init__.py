"""``moet plan``: what fits on a card, where, and how fast it will be. Pure functions; nothing here imports torch."""
