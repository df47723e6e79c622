"""Which rows of a draft step only fill its graph up. vLLM says so of the target's rows, not of the draft's.

A FULL graph of the draft is captured for some numbers of requests; a step with fewer replays the next larger one, and
the rows beyond carry what earlier steps left there: token ids, hence experts, that nobody asked for. The mask lies at a
fixed address, which captured kernels read, and is written before the step that it describes, in the order of steps.
"""

from __future__ import annotations

from typing import Any

import torch

from . import step_hook


class DraftPadding:
    """The mask of the draft's rows.

    Attributes:
        mask: bool ``[most]`` on the device; true where a row is none of a request's.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        """All rows are real until :meth:`before_step` says otherwise.

        Args:
            most: rows of the largest draft step.
            device: where the draft computes.
        """
        self.mask = torch.zeros(most, dtype=torch.bool, device=device)
        self._real = most

    def attach(self, speculator: type) -> None:
        """Have the mask written before each draft step.

        Args:
            speculator: vLLM's ``DSparkSpeculator``.

        Raises:
            UnsupportedError: it has no ``propose`` whose first argument is the batch.
        """
        step_hook.before(speculator, "propose", "input_batch", self.before_step)

    def before_step(self, speculator: Any, input_batch: Any) -> None:
        """Write the mask where it changes; nothing waits for the device."""
        real = min(input_batch.num_reqs * speculator.num_query_per_req, len(self.mask))
        if real != self._real:
            self.mask[:real].fill_(False)
            self.mask[real:].fill_(True)
            self._real = real

    def rows(self, tokens: int) -> torch.Tensor | None:
        """The mask of a step of so many rows, or None for one that is larger than any."""
        return self.mask[:tokens] if tokens <= len(self.mask) else None
