"""The ``moet_synthetic`` load format: a model of real geometry from a folder that holds only config.json.

Experts are computed where they live (:mod:`moet_w2.synthetic`). Everything else is drawn as whole tensors under the
checkpoint's names (:mod:`moet_w2.synthetic_dense`) and handed to the model's own ``load_weights``, so renaming, fusing
and the tensor-parallel split are vLLM's, as they are for a checkpoint.
"""

from __future__ import annotations

import torch
from vllm.config import ModelConfig

from . import runtime
from .cache import phases
from .errors import UnsupportedError
from .loader import MoetLoader
from .synthetic_dense import Dense, unreached

SHARED = ("model.embed_tokens.", "lm_head.")
"""What a draft takes from its target once both are loaded."""


class SyntheticLoader(MoetLoader):
    """vLLM's own construction, loading and post-processing, of tensors that nobody has read."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Draw and load.

        Raises:
            UnsupportedError: the model has a parameter that no tensor reaches.
        """
        here, started = runtime.get(), phases.of_process()
        seed = 0 if here.synthetic is None else here.synthetic.seed
        dense = Dense(model_config.hf_config.to_dict(), seed, here.device)
        with started.measure("draft rest" if self.drafting else "target rest"):
            reached = model.load_weights(dense.tensors(self.drafting))
        if left := unreached(model, reached, SHARED if self.drafting else ()):
            raise UnsupportedError(
                f"--load-format moet_synthetic: {left[0]} gets no value ({len(left)} parameters do not); this model "
                "has tensors that official.py does not list, serve it from a checkpoint"
            )
