"""An audit for a person: the block that the log shows when a server is ready, and ``moet audit show``."""

from __future__ import annotations

from typing import Any


def summary(document: dict[str, Any]) -> str:
    """The whole audit in a few lines."""
    serving = document["serving"]
    lines = [f"state            {document['state']}"]
    parallel = document["tensor_parallel"]
    if parallel["size"] > 1:
        lines.append(f"rank             {parallel['rank']} of {parallel['size']}, its share of every layer")
    if serving is not None:
        lines.append(f"profile          {serving['profile'] or 'none given'}")
    lines += [
        f"device           {document['device']['name']} ({document['device']['type']})",
        f"quantizer        abi {document['quantizer']['abi']}, zeros {document['quantizer']['zero_mode']}",
        f"W2 layers        {len(document['layers'])}, {document['w2_bytes']:,} bytes",
        f"mapped layers    {_keys(document['allocated_mapped_layers'])}, {document['mapped_bytes']:,} bytes",
        f"redundant bytes  {document['redundant_gpu_w2_bytes']:,}",
        f"correction       {_correction(document)}",
    ]
    if serving is not None:
        lines += _serving(serving, ", block-scaled up to 8 tokens" if document["device"].get("block_scaled") else "")
    for layer in document["layers"]:
        if layer["host"]:
            pages = ", ".join(f"{count:,} on node {node}" for node, count in layer["host"]["pages_by_node"].items())
            lines.append(f"  layer {layer['key']:<3}      pages: {pages or layer['host']['pages_note']}")
    return "\n".join(lines)


def _serving(serving: dict[str, Any], variant: str) -> list[str]:
    speculative, kv = serving["speculative"], serving["kv_cache_tokens"]
    held = "none" if kv is None else f"{kv:,} tokens as vLLM reports them"
    drafts = "none" if speculative is None else f"{speculative['method']}, {speculative['tokens']} tokens"
    seconds = ", ".join(f"{name} {spent:.1f}" for name, spent in serving["seconds"].items() if spent is not None)
    lines = [
        f"admission        {serving['max_model_len']:,} tokens a request",
        f"KV cache         {held}, {serving['kv_cache_dtype']}",
        f"scheduler        {serving['max_num_seqs']} sequences, {serving['max_num_batched_tokens']:,} tokens a step, "
        f"prefix caching {'on' if serving['prefix_caching'] else 'off'}",
        f"speculation      {drafts}",
        f"graphs           {serving['graph_mode']}",
        f"kernels          experts: {serving['expert_kernels']}{variant}; attention: "
        f"{', '.join(serving['attention_backends']) or 'none'}",
        f"seconds          {seconds or 'no phase measured'}; {serving['seconds_since_process_start']:.1f} in all",
    ]
    return lines + [f"problem          {problem}" for problem in serving["problems"]]


def _correction(document: dict[str, Any]) -> str:
    pool = document["correction"]
    if pool is None:
        return "none"
    excluded = _keys(document["uncorrected_layers"])
    return f"{pool['slots']:,} slots, {pool['bytes']:,} bytes, policy {pool['policy']}, excluded layers {excluded}"


def _keys(keys: list[int]) -> str:
    return ", ".join(map(str, keys)) or "none"
