"""Made-up weights for ``--load-format dummy``: benchmarks of speed and memory need bytes, not a checkpoint."""

from __future__ import annotations

import torch

from .geometry import PARTS
from .layer import W2Layer

LOAD_FORMAT = "dummy"
"""vLLM's name for a start without weights."""
ORIGIN = "dummy"
"""What the audit says of such a layer; ``moet audit check`` holds it for a fault."""

# UE8M0 bytes 120..122: 2**-7 .. 2**-5. With levels up to 4 and real widths, a layer's output stays within a few
# times its input.
_SCALES = (120, 123)


def fill(layer: W2Layer) -> None:
    """Random codes and small random scales, the same for the same layer key on the same kind of device.

    Args:
        layer: a layer that no tensor has reached; it is complete afterwards.
    """
    generator = torch.Generator(layer.storage.device).manual_seed(layer.key)
    for part in PARTS:
        view = layer.view(part)
        if part.startswith("sc"):
            view.random_(*_SCALES, generator=generator)
        else:
            view.view(torch.int32).random_(-(2**31), 2**31, generator=generator)
    layer.adopt()
    layer.origin = ORIGIN
