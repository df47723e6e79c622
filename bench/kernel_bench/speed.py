"""How fast the kernels are at the real geometry, against what memory gives in the same run."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from . import timing, traffic, workload
from .chain import STEPS, Chain
from .traffic import Traffic

FP4_TOKENS = (1, 5, 64)


def measure(tokens: tuple[int, ...] = workload.TOKENS, repeats: int = 30) -> dict[str, Any]:
    """Time every token count from planes, some of them from correction rows."""
    layers = workload.random_layers()
    reader = timing.Reader(layers)
    records = []
    for count in tokens:
        records.append(record(workload.chains(count, layers), layers, reader, repeats))
        print_record(records[-1])
    rows = workload.random_rows()
    for count in (one for one in FP4_TOKENS if one in tokens):
        records.append(record(workload.chains(count, layers, rows), layers, reader, repeats))
        print_record(records[-1])
    return {
        "geometry": asdict(workload.LAYER),
        "top_k": workload.TOP_K,
        "layers": workload.LAYERS,
        "read_gb_per_s": {"ceiling": reader.ceiling, "by_blocks_and_order": reader.gb_per_s},
        "read_checked": reader.checked(layers[0][: 1 << 28]),
        "copy_gb_per_s": timing.copy_gb_per_s(layers[0]),
        "tokens": records,
        "host_microseconds": host(layers[0]),
    }


def record(
    chains: list[Chain], layers: list[torch.Tensor], reader: timing.Reader, repeats: int, compare: bool = True
) -> dict[str, Any]:
    """Time one set of calls: each kernel alone, all four in turn, and reads of as many bytes.

    Args:
        chains: the calls, of one token count.
        layers: what the reads go over.
        reader: reads memory, and knows the ceiling.
        repeats: replays of each graph.
        compare: time the reads as well.
    """
    fp4 = chains[0].call.rows is not None
    moved = mean([traffic.of_call(workload.LAYER, chain.call.topk_ids.cpu(), fp4) for chain in chains])
    for chain in chains:
        chain.run()  # leaves entries and inner activations for each kernel alone
    graphs = {name: timing.graph_of([partial(chain.launch, name) for chain in chains]) for name in STEPS}
    graphs["chain"] = timing.graph_of([chain.run for chain in chains])
    nbytes = {name: getattr(moved, name) for name in ("gemm13", "gemm2", "chain")}
    if compare:
        for name, size in nbytes.items():
            graphs[f"read_{name}"] = timing.graph_of(reads(size, len(chains), layers, reader))
    spent = timing.microseconds({name: (graph, len(chains)) for name, graph in graphs.items()}, repeats)
    equal = {}
    if compare:  # a read is of one whole layer at most
        equal = {name: spent[f"read_{name}"] * max(1, size / workload.LAYER.nbytes) for name, size in nbytes.items()}
    rates = {name: size / spent[name] / 1e3 for name, size in nbytes.items()}
    return {
        "tokens": chains[0].plan.tokens,
        "tier": "fp4" if fp4 else "base",
        "experts": moved.experts,
        "kernels": [step.name for step in chains[0].plan.steps],
        "calls": len(chains),
        "microseconds": {name: spent[name] for name in (*STEPS, "chain")},
        "bytes": nbytes,
        "weight_bytes": {"gemm13": moved.weights13, "gemm2": moved.weights2},
        "gb_per_s": rates,
        "share_of_ceiling": {name: rate / reader.ceiling for name, rate in rates.items()},
        "share_of_equal_read": {name: read / spent[name] for name, read in equal.items()},
    }


def reads(nbytes: int, count: int, layers: list[torch.Tensor], reader: timing.Reader) -> list[timing.Work]:
    """``count`` reads of ``nbytes`` each, of a whole layer at most, which rotate over the layers as the calls do."""
    size = min(nbytes, layers[0].numel()) // 16 * 16
    span = layers[0].numel() - size
    works = []
    for number in range(count):
        start = (number // len(layers) * size) % (span + 1) // 16 * 16
        works.append(reader.read(layers[number % len(layers)].data_ptr() + start, size))
    return works


def mean(counted: list[Traffic]) -> Traffic:
    """The mean of each number, rounded."""
    return Traffic(*(round(statistics.mean(values)) for values in zip(*counted, strict=True)))


def host(layer: torch.Tensor) -> dict[str, float]:
    """What the host spends on one eager call of few tokens: the operator, and its four launches alone."""
    chain = workload.chains(5, [layer], count=1)[0]
    x, weights, ids = chain.call[:3]

    def operator() -> None:
        torch.ops.moet_w2.experts(x, weights, ids, layer, workload.LAYER.experts, workload.LAYER.width, workload.LIMIT)

    return {"operator": timing.host_microseconds(operator), "launches": timing.host_microseconds(chain.run)}


def targets(records: list[dict[str, Any]], ratios: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What was aimed at and what was reached, by name; ``reached`` is the worst of its cases, None where none ran.

    Args:
        records: of :func:`record`.
        ratios: of :func:`kernel_bench.stock.ratios`, or None.
    """
    few = [one for one in records if one["tier"] == "base" and one["tokens"] <= 8]
    shares = [one["share_of_ceiling"][gemm] for one in few for gemm in ("gemm13", "gemm2")]
    ratio = {int(tokens): one["ratio"] for tokens, one in (ratios or {}).items()}
    found = {
        "share_of_ceiling_of_each_gemm_to_8_tokens": (0.75, shares),
        "times_stock_to_8_tokens": (1.6, [value for tokens, value in ratio.items() if tokens <= 8]),
        "times_stock_at_2048_tokens": (1.0, [value for tokens, value in ratio.items() if tokens == 2048]),
    }
    return {name: _target(least, values) for name, (least, values) in found.items()}


def _target(least: float, values: list[float]) -> dict[str, Any]:
    reached = min(values, default=None)
    return {"at_least": least, "reached": reached, "met": None if reached is None else reached >= least}


HEADER = (
    "tokens  tier  experts   gemm13 us  ceiling  read    gemm2 us  ceiling  read    chain us  ceiling   "
    "routing  combine us"
)


def print_record(one: dict[str, Any]) -> None:
    """One line of the table; HEADER names its columns."""
    spent, share, equal = one["microseconds"], one["share_of_ceiling"], one["share_of_equal_read"]
    columns = [f"{one['tokens']:6d}  {one['tier']:4}  {one['experts']:7d}  "]
    for name, width in (("gemm13", 10), ("gemm2", 10)):
        read = f"{equal[name]:6.1%}" if equal else "     -"
        columns.append(f"{spent[name]:{width}.2f}  {share[name]:7.1%}  {read}")
    columns.append(f"{spent['chain']:10.2f}  {share['chain']:7.1%}   {spent['routing']:7.2f}  {spent['combine']:7.2f}")
    print("".join(columns[:1]) + "  ".join(columns[1:]), flush=True)
