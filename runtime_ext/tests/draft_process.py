"""The child of test_draft_model.py: vLLM's own CUDA classes of the DSpark draft, built and loaded on a CPU.

What needs a GPU to exist (events, kernel choices) is stubbed; names, configuration, parameters, loaders and the
loader's walk over the checkpoint are vLLM's and ours. Prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from generators import expert_tensors, write_shards

from moet_w2 import plugin, runtime, synthetic_loader
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard

GEOMETRY = LayerGeometry(4, 256, 256)
TARGETS, DRAFTS = 2, 3


def write_model(folder: Path) -> dict[int, dict[tuple[int, str, str], torch.Tensor]]:
    """A checkpoint with routed experts of every layer and some dense tensors; the drafts' experts by layer key."""
    demo = Path(__file__).resolve().parents[2] / "demo" / "checkpoint" / "config.json"
    config = json.loads(demo.read_text()) | {
        "num_hidden_layers": TARGETS,
        "num_hash_layers": 1,
        "n_routed_experts": GEOMETRY.experts,
        "moe_intermediate_size": GEOMETRY.width,
        "num_experts_per_tok": 2,
        "compress_ratios": [4, 128] + [0] * DRAFTS,
        "n_mtp_layers": DRAFTS,
        "dspark_target_layer_ids": [0, 1],
        "dspark_markov_rank": 64,
        "dspark_noise_token_id": 2,
        "dspark_block_size": 4,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    experts = {key: expert_tensors(GEOMETRY, key) for key in range(TARGETS + DRAFTS)}
    stacks = [f"layers.{key}" for key in range(TARGETS)] + [f"mtp.{key}" for key in range(DRAFTS)]
    tensors = {
        f"{stacks[key]}.ffn.experts.{expert}.{projection}.{kind}": tensor
        for key, layer in experts.items()
        for (expert, projection, kind), tensor in layer.items()
    }
    tensors |= {
        "embed.weight": torch.ones(768, 256),
        "layers.0.attn_norm.weight": torch.full((256,), 3.0),
        "mtp.1.attn_norm.weight": torch.full((256,), 5.0),
        "mtp.2.norm.weight": torch.full((256,), 7.0),
    }
    write_shards(folder, tensors)
    return {key: experts[key] for key in range(TARGETS, TARGETS + DRAFTS)}


def stub_cuda() -> None:
    """What the classes ask of a GPU while they are built."""
    from vllm.model_executor.layers.quantization import fp8
    from vllm.models.deepseek_v4.nvidia import flashmla

    class Absent:
        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

    torch.cuda.Event = torch.cuda.Stream = Absent
    fp8.init_fp8_linear_kernel = lambda **kwargs: None
    flashmla.compute_fp8_einsum_recipe = lambda: ((1, 1, 128), True)


def main(folder: Path, load_format: str) -> None:
    plugin.register()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader

    experts = write_model(folder)
    config = EngineArgs(
        model=str(folder),
        quantization="moet_w2",
        load_format=load_format,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=256,
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=1024,
        speculative_config={"method": "dspark", "num_speculative_tokens": 4},
    ).create_engine_config()
    draft_config = config.speculative_config.draft_model_config
    stub_cuda()
    from vllm.models.deepseek_v4.nvidia.dspark import DSparkDeepseekV4ForCausalLM
    from vllm.models.deepseek_v4.nvidia.model import DeepseekV4ForCausalLM

    with set_current_vllm_config(config):
        rendezvous = f"file://{folder / 'rendezvous'}"
        init_distributed_environment(1, 0, rendezvous, 0, "gloo")
        initialize_model_parallel(1, 1)
        quantization = VllmConfig.get_quantization_config(draft_config, config.load_config)
        # vLLM builds models with the GPU as the default device: what is made for the host must say so. Another default
        # than the CPU shows here what forgets it.
        before = {id(tensor) for tensor in astray()}
        with torch.device("meta"):
            here = runtime.get()
            here.create_layer(0, GEOMETRY, Shard())
        lost = [list(tensor.shape) for tensor in astray() if id(tensor) not in before]
        del here.layers[0]
        loader = get_model_loader(config.load_config)
        target = None
        if load_format != "moet":  # a checkpoint would need every dense tensor of the target
            target = DeepseekV4ForCausalLM(vllm_config=config)
            load(loader, target, config.model_config)
        model = DSparkDeepseekV4ForCausalLM(vllm_config=config)
        loader.drafting = True
        load(loader, model, draft_config)
        shares: dict[str, list[str]] = {}
        if target is not None:
            whole = parameters(target) | of_draft(model)
            layers = dict(here.layers)
            shares = split(whole, lambda: both(config, draft_config, loader))
            here.layers.clear()
            here.layers.update(layers)
    facts = {
        "quantization": quantization.get_name(),
        "layers": {key: layer.origin for key, layer in here.layers.items()},
        "mapped": [key for key, layer in here.layers.items() if layer.host is not None],
        "names": [module.layer_name for module in model.modules() if hasattr(module, "w2")],
        "bytes_read": loader.nbytes_read,
        "complete": all(layer.complete for layer in here.layers.values()),
        "astray": lost,
        "draft_mask": list(here.draft_padding.mask.shape),
        "audit": {key: value for key, value in here.audit.document().items() if key.endswith("layers")},
        "norms": [float(model.model.layers[1].attn_norm.weight[0]), float(model.model.norm.weight[0])],
    }
    if load_format == "moet":
        from generators import device_layer

        for key, layer in here.layers.items():
            expected = device_layer(GEOMETRY, key)
            for name, tensor in experts[key].items():
                expected.put(*name, tensor)
            facts["complete"] &= torch.equal(layer.storage, expected.storage)
        facts["bytes_of_drafts"] = 2 * 256 * 4 + sum(t.nbytes for layer in experts.values() for t in layer.values())
        facts["codes_wanted"] = [key for key in here.layers if here.correction.wants_codes(key)]
    else:
        facts["dense"] = dense(model)
        facts["target"] = dense(target)
        facts["shares"] = shares
        # What vLLM's own load_weights leaves for the first layer, and its forward pass asserts.
        facts["finished"] = target.model.layers[0].hc_attn_fn_broadcast is not None
    print("RESULT " + json.dumps(facts))
    sys.stdout.flush()
    os._exit(0)  # the process group and the correction's files need no orderly end


def load(loader: Any, model: torch.nn.Module, model_config: Any) -> None:
    """Loading and, of the W2 layers, post-processing."""
    loader.load_weights(model, model_config)
    for module in model.modules():
        if hasattr(module, "w2"):
            module.quant_method.process_weights_after_loading(module)


def astray() -> list[torch.Tensor]:
    """Tensors on the meta device that are alive."""
    return [found for found in gc.get_objects() if isinstance(found, torch.Tensor) and found.is_meta]


def both(config: Any, draft_config: Any, loader: Any) -> dict[str, torch.Tensor]:
    """Parameters of target and draft of one rank, built anew."""
    from vllm.models.deepseek_v4.nvidia.dspark import DSparkDeepseekV4ForCausalLM
    from vllm.models.deepseek_v4.nvidia.model import DeepseekV4ForCausalLM

    config.compilation_config.static_forward_context.clear()
    runtime.get().layers.clear()
    found = {}
    for kind, drafting in ((DeepseekV4ForCausalLM, False), (DSparkDeepseekV4ForCausalLM, True)):
        loader.drafting = drafting
        model = kind(vllm_config=config)
        loader.load_weights(model, draft_config if drafting else config.model_config)
        found |= of_draft(model) if drafting else parameters(model)
    return found


def split(whole: dict[str, torch.Tensor], build: Callable[[], dict[str, torch.Tensor]]) -> dict[str, list[str]]:
    """How two ranks hold each parameter of one model: ``whole``, ``shared out``, or something that is ``wrong``.

    vLLM's layers take their rank and size from the group while they are built, and only then.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group, ranks = get_tp_group(), []
    for rank in (0, 1):
        group.world_size, group.rank_in_group = 2, rank
        ranks.append(build())
    group.world_size, group.rank_in_group = 1, 0
    found: dict[str, list[str]] = {"whole": [], "shared out": [], "wrong": []}
    for name, value in whole.items():
        parts = [made[name] for made in ranks]
        if all(torch.equal(part, value) for part in parts):
            found["whole"].append(name)
        else:
            ways = [torch.cat(parts, dim) for dim in range(value.ndim)]
            if not len(parts[0]) % 2:  # gate and up projection lie in one parameter
                ways.append(torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts]))
            found["shared out" if any(torch.equal(way, value) for way in ways) else "wrong"].append(name)
    return found


def of_draft(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The draft's own parameters; embedding and head become the target's once it is loaded."""
    own = parameters(model).items()
    return {f"draft {name}": value for name, value in own if not name.startswith(synthetic_loader.SHARED)}


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Bytes of each parameter that holds any; of an attention sink, those of heads that exist."""
    found = {}
    for name, held in model.named_parameters():
        value = held.detach()
        if name.endswith("attn_sink"):
            value = value[value.isfinite()]
        if value.numel():
            found[name] = value.contiguous().view(torch.uint8).clone()
    return found


def dense(model: torch.nn.Module) -> dict[str, list[float]]:
    """Of each parameter that is no expert's: smallest and largest root mean square of its rows."""
    found = {}
    for prefix, module in model.named_modules():
        own = {} if hasattr(module, "w2") else dict(module.named_parameters(recurse=False))
        for name, value in own.items():
            if name.startswith("weight_scale"):
                continue
            rows = value.detach().float()
            scale = next((own[other] for other in own if other.startswith("weight_scale")), None)
            if scale is not None:
                rows = rows * float(scale.float().flatten()[0])
            if name == "attn_sink":
                rows = rows[rows.isfinite()]
            size = rows.flatten(1).pow(2).mean(1).sqrt() if rows.ndim > 1 else rows.abs()
            found[f"{prefix}.{name}" if prefix else name] = [float(size.min()), float(size.max())]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
