"""transformers' DeepSeek-V4 in our shape: initial weights, and the copy that computes on weights as served."""

from __future__ import annotations

import torch

from demo.make import fast, fp8, mxfp4
from demo.make.geometry import EXPERTS, HEAD_DIM, ROPE_DIM, TOP_K, VOCABULARY, official_config
from demo.make.hf import DeepseekV4Config, DeepseekV4ForCausalLM
from demo.make.names import entries

STORAGE = {entry.ours: entry.storage for entry in entries()}
Weights = dict[str, torch.Tensor]


def transformers_config() -> DeepseekV4Config:
    """The same shape as transformers' config object, with its plain implementations chosen."""
    fields = official_config()
    for key in ("quantization_config", "architectures", "model_type", "torch_dtype", "expert_dtype", "topk_method"):
        del fields[key]
    config = DeepseekV4Config(**fields)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def _round_cached_row(_module: torch.nn.Module, _inputs: object, row: torch.Tensor) -> torch.Tensor:
    """Forward hook of a kv_norm: the server keeps the part without RoPE in FP8, so training sees it so."""
    plain = HEAD_DIM - ROPE_DIM
    return torch.cat((fp8.fake_quantise_row(row[..., :plain]), row[..., plain:]), -1)


def _hash_table(generator: torch.Generator) -> torch.Tensor:
    """tid2eid [vocabulary, top-k] int64: for each token distinct experts, drawn once."""
    return torch.rand(VOCABULARY, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].contiguous()


def initial_weights(seed: int) -> Weights:
    """Untrained weights (and the hash tables) in float32 on the CPU; equal for equal seeds."""
    torch.manual_seed(seed)
    model = DeepseekV4ForCausalLM(transformers_config()).float()
    generator = torch.Generator().manual_seed(seed)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items() if name in STORAGE}
    for name, weight in weights.items():
        if STORAGE[name] in ("fp4", "fp8"):
            # Slightly under unit gain: the RMS norms in front of every block keep activations near one.
            weight.normal_(0.0, 0.7 * weight.shape[-1] ** -0.5, generator=generator)
        elif name.endswith("tid2eid"):
            weight.copy_(_hash_table(generator))
    return weights


def computing_model(dtype: torch.dtype, device: str, plain: bool = False) -> DeepseekV4ForCausalLM:
    """An empty model that computes in `dtype`; what the checkpoint keeps in float32 stays float32.

    plain: transformers' own eager experts and attention instead of the faster equal ones.
    """
    model = DeepseekV4ForCausalLM(transformers_config()).to(device)
    if not plain:
        model.config._attn_implementation = fast.ATTENTION_NAME
        model.config._experts_implementation = fast.EXPERTS_NAME
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(_dtype(name, dtype))
    for name, module in model.named_modules():
        if name.endswith(("self_attn.kv_norm", "compressor.kv_norm")):
            module.register_forward_hook(_round_cached_row)
    return model


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    # Norm weights would promote a bf16 model to float32 behind them, so they follow the compute type.
    return torch.float32 if STORAGE[name] == "f32" else dtype


@torch.no_grad()
def serve(model: DeepseekV4ForCausalLM, masters: Weights, two_bit: bool) -> None:
    """Put weights into the model as a server would hold them: quantised by storage, experts MXFP4 or 2-bit."""
    places = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, master in masters.items():
        storage = STORAGE[name]
        if storage == "fp4":
            master = mxfp4.quantise(master, two_bit)
        elif storage == "fp8":
            master = fp8.quantise(master)
        places[name].copy_(master)


def sliding_mask(length: int, dtype: torch.dtype, device: str | torch.device) -> torch.Tensor:
    """Additive mask [length, length] of a causal sliding window."""
    position = torch.arange(length, device=device)
    back = position[:, None] - position[None, :]
    seen = (back >= 0) & (back < official_config()["sliding_window"])
    return torch.zeros(length, length, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)


def hidden_states(model: DeepseekV4ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Final hidden states [rows, length, hidden] of token ids [rows, length].

    The mask is made here because transformers' own looks at values, which a captured CUDA graph cannot.
    """
    rows, length = tokens.shape
    mask = sliding_mask(length, model.lm_head.weight.dtype, tokens.device).expand(rows, 1, length, length)
    return model.model(tokens, attention_mask={"sliding_attention": mask}, use_cache=False).last_hidden_state
