"""KV cache of DeepSeek-V4 as vLLM counts it: pages, groups, blocks of a request, tokens.

vLLM puts the caches of all layers into groups that share one pool of blocks. A block is as large as the widest group
needs; a request takes blocks of every group:

    full        compressed keys and the indexer's, 256 tokens a block: as many blocks as its tokens need
    window      keys of the last 128 tokens, 64 a block; with the 46 layers of Flash two groups of 23
    state       what the compressors keep of tokens not yet compressed: blocks of 4 (ratio 4) and 8 (ratio 128) tokens

A group with a window takes blocks for the window and for every token that is scheduled but not settled, which is
max-num-batched-tokens, twice with async scheduling. That is the fixed part of a request: 1,690 blocks in the profiles,
more than the 1,172 of 300,000 tokens. So "KV tokens" is not bytes over bytes a token:

    tokens = blocks of the pool / blocks of a request of max-model-len x max-model-len

Source: vllm/v1/core/kv_cache_utils.py (_get_packed_kv_cache_groups, get_max_concurrency_for_kv_cache_config,
_check_enough_kv_cache_memory), v1/kv_cache_interface.py, and the specs in models/deepseek_v4/attention.py,
compressor.py and v1/attention/backends/mla/sparse_swa.py. A test builds vLLM's own configuration and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .model import Model

ALIGNMENT = 576
"""Bytes that pages of the fp8_ds_mla layout are rounded up to."""
KEY_BYTES = 584
"""One stored key: 448 fp8, 64 bf16 and 8 scale bytes."""
WINDOW_BLOCK = 64
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens of a block of compressor state, by compression ratio."""


@dataclass(frozen=True)
class Cache:
    """One layer's cache of one kind.

    Attributes:
        block: tokens of a block.
        window: tokens that are kept; None for all.
        page: bytes of a block.
    """

    block: int
    window: int | None
    page: int


@dataclass(frozen=True)
class Group:
    """Caches that share a block table.

    Attributes:
        block: tokens of a block.
        window: tokens that are kept; None for all.
        pages: bytes of a block in each of its caches.
    """

    block: int
    window: int | None
    pages: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a block over all caches of the group."""
        return sum(self.pages)

    def blocks(self, context: int, in_flight: int) -> int:
        """Blocks that a request of ``context`` tokens may take at most.

        Args:
            context: its length.
            in_flight: tokens that are scheduled and not settled, at most.
        """
        if self.window is None:
            return -(-context // self.block)
        return -(-min(self.window - 1 + in_flight, context) // self.block) + 1


@dataclass(frozen=True)
class Layout:
    """The groups of a model.

    Attributes:
        groups: in vLLM's order.
    """

    groups: tuple[Group, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return max(group.nbytes for group in self.groups)

    def blocks(self, context: int, in_flight: int) -> int:
        """Blocks of one request."""
        return sum(group.blocks(context, in_flight) for group in self.groups)

    def tokens(self, nbytes: int, context: int, in_flight: int) -> int:
        """What vLLM reports as KV cache size for a pool of ``nbytes``."""
        return int(max(0, nbytes // self.block_bytes) / self.blocks(context, in_flight) * context)

    def needed(self, context: int, in_flight: int) -> int:
        """Bytes below which vLLM refuses to start: one request, and the block that is never given out."""
        return (self.blocks(context, in_flight) + 1) * self.block_bytes


@lru_cache(maxsize=256)
def layout(model: Model, block: int = 256) -> Layout:
    """Group a model's caches as vLLM does.

    Args:
        model: its dimensions.
        block: ``--block-size``.
    """
    buckets: dict[tuple[int, int | None], list[int]] = {}
    for cache in caches(model, block):
        buckets.setdefault((cache.block, cache.window), []).append(cache.page)
    if len(buckets) == 1:  # a model with nothing but windows
        return Layout(tuple(Group(tokens, window, tuple(pages)) for (tokens, window), pages in buckets.items()))
    repeats = _repeats_per_group([Counter(pages) for pages in buckets.values()])
    anchor = 0 if repeats else _anchor(buckets)
    groups = []
    for (tokens, window), pages in buckets.items():
        counts = Counter(pages)
        balanced = len(set(counts.values())) == 1
        parts = -(-max(counts.values()) // repeats) if balanced and repeats else 1
        if not repeats and window is not None:
            parts = max(parts, -(-len(pages) // max(anchor // pages[0], 1)))
        groups += [Group(tokens, window, tuple(pages))] if parts == 1 else _split(tokens, window, counts, parts)
    return Layout(tuple(groups))


def caches(model: Model, block: int) -> list[Cache]:
    """Every cache of every layer, in the order in which vLLM's layers register them."""
    made = []
    for key in range(model.layers):
        ratio = model.ratio(key)
        if ratio == 4:
            made.append(Cache(block, None, _page(block // ratio, model.index_dim + 4)))
            made.append(_state(model.index_dim, ratio))
        made.append(Cache(WINDOW_BLOCK, model.window, _page(WINDOW_BLOCK, KEY_BYTES)))
        if ratio:
            made.append(Cache(block, None, _page(block // ratio, KEY_BYTES)))
            made.append(_state(model.head_dim, ratio))
    return made


def _state(head_dim: int, ratio: int) -> Cache:
    # fp32 of keys and scores; ratio 4 overlaps two windows (models/deepseek_v4/compressor.py).
    overlap = 2 if ratio == 4 else 1
    tokens = STATE_BLOCKS[ratio]
    return Cache(tokens, overlap * ratio, _page(tokens, 2 * overlap * head_dim * 4))


def _page(states: int, nbytes: int) -> int:
    return -(-states * nbytes // ALIGNMENT) * ALIGNMENT


def _repeats_per_group(counts: Sequence[Counter[int]]) -> int:
    """Layers that each group of a balanced bucket covers; 0 where no bucket mixes page sizes evenly."""
    balanced = [count for count in counts if len(set(count.values())) == 1]
    mixed = [max(count.values()) for count in balanced if len(count) > 1]
    if not mixed:
        return 0
    sizes = [max(count.values()) for count in balanced]
    candidates = range(max(mixed), max(max(sizes), max(mixed)) + 1)
    return min(candidates, key=lambda size: (sum(-value % size for value in sizes), -size))


def _anchor(buckets: dict[tuple[int, int | None], list[int]]) -> int:
    """Bytes that a block has in any case, where windowed buckets may be split down to one cache."""
    return max(sum(set(pages)) if window is not None else sum(pages) for (_, window), pages in buckets.items())


def _split(block: int, window: int | None, counts: Counter[int], parts: int) -> list[Group]:
    repeats = max(counts.values())
    return [Group(block, window, tuple(sorted(counts)) * len(range(part, repeats, parts))) for part in range(parts)]
