"""The one description of the demo model's shape: the official config.json and the constants that follow from it."""

from __future__ import annotations

from typing import Any

HIDDEN = 256
LAYERS = 4
EXPERTS = 64
TOP_K = 6
EXPERT_WIDTH = 128
HASH_LAYERS = 1
VOCABULARY = 768
HEAD_DIM = 512
ROPE_DIM = 64
# One pure sliding layer, then compressed layers of both kinds, so every attention path of the architecture is served.
COMPRESS_RATIOS = (0, 4, 128, 4)

FP8_BLOCK = 128
FP4_BLOCK = 32


def official_config() -> dict[str, Any]:
    """The content of config.json, with the keys that the released DeepSeek-V4 checkpoints carry."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "expert_dtype": "fp4",
        "hc_eps": 1e-06,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "index_head_dim": 128,
        "index_n_heads": 8,
        "index_topk": 512,
        "initializer_range": 0.02,
        "max_position_embeddings": 16384,
        "moe_intermediate_size": EXPERT_WIDTH,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 8,
        "num_experts_per_tok": TOP_K,
        "num_hidden_layers": LAYERS,
        "num_hash_layers": HASH_LAYERS,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 0,
        "o_groups": 2,
        "o_lora_rank": 128,
        "q_lora_rank": 128,
        "qk_rope_head_dim": ROPE_DIM,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 4,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "compress_ratios": list(COMPRESS_RATIOS),
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
