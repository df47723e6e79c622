"""The suites, one a file. Each says what to ask and what must hold; ``validation.core`` does the rest."""
