"""transformers' DeepSeek-V4 classes, imported so that unusable media packages do not stop us.

transformers imports them wherever they are installed, also for a text model; one built for another torch raises.
"""

from __future__ import annotations

import importlib
import sys

for _package in ("torchvision", "torchaudio", "torchcodec"):
    try:
        importlib.import_module(_package)
    except (ImportError, OSError, RuntimeError):
        # A None entry makes the package look absent, so transformers takes its path without it.
        sys.modules[_package] = None  # type: ignore[assignment]

from transformers import DeepseekV4Config, DeepseekV4ForCausalLM  # noqa: E402
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: E402
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "ALL_EXPERTS_FUNCTIONS",
    "ALL_MASK_ATTENTION_FUNCTIONS",
    "DeepseekV4Config",
    "DeepseekV4ForCausalLM",
]
