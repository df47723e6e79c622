"""The one place that knows what the processor can do, and what vLLM's compiled kernels need of it.

vLLM's CPU wheel carries three builds of its C extension. Only the one for AVX512-BF16 (and AMX, which it uses at run
time where present) has the DeepSeek-V4 operations; the AVX512 and AVX2 builds have the general ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from ..errors import UnsupportedError

ISAS = ("avx2", "avx512", "avx512_bf16", "amx")
"""Instruction sets by rank, lowest first."""

_LIBRARY_LIMITS = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}
"""Switches that keep oneDNN, ATen and MKL below a limit. Each library reads its own once, when first used."""


@dataclass(frozen=True)
class Capability:
    """What this process uses.

    Attributes:
        isa: instruction set in use, one of :data:`ISAS`.
        machine: instruction set of the processor, at least ``isa``.
    """

    isa: str
    machine: str

    @property
    def has_compiled_ops(self) -> bool:
        """Whether vLLM's compiled DeepSeek-V4 operations run here. AMX makes them faster, not more right."""
        return rank(self.isa) >= rank("avx512_bf16")

    @property
    def is_limited(self) -> bool:
        """Whether a limit keeps this process below its processor."""
        return self.isa != self.machine


def rank(isa: str) -> int:
    """Position of an instruction set in :data:`ISAS`."""
    return ISAS.index(isa)


def detect(limit: str | None = None, supports: dict[str, bool] | None = None) -> Capability:
    """Find the instruction set to use: the processor's, or ``limit`` where that is lower.

    Args:
        limit: one of :data:`ISAS` or None.
        supports: processor features by torch's names; None asks torch.

    Raises:
        UnsupportedError: ``limit`` is not an instruction set, or the processor has no AVX2.
    """
    if limit is not None and limit not in ISAS:
        raise UnsupportedError(f"CPU instruction set {limit!r} is not known; use one of {', '.join(ISAS)}")
    has = torch.cpu.get_capabilities() if supports is None else supports
    if not has.get("avx2", False):
        raise UnsupportedError("this processor has no AVX2; serving on a CPU needs an x86-64 processor with AVX2")
    machine = "avx2"
    if has.get("avx512_f") and has.get("avx512_bw") and has.get("avx512_vl") and has.get("avx512_dq"):
        machine = "avx512"
        if has.get("avx512_bf16"):
            machine = "amx" if has.get("amx_tile") and has.get("amx_bf16") else "avx512_bf16"
    isa = machine if limit is None else min(machine, limit, key=rank)
    return Capability(isa, machine)


def impose(capability: Capability) -> None:
    """Make this process, and the processes it starts, behave as on a processor that ends at ``capability.isa``.

    Does nothing where no limit applies. Otherwise torch's own feature predicates answer for the lesser processor, so
    that vLLM loads the extension built for it, and the numeric libraries get their own switches. Call it before vLLM
    loads its extension; :func:`loaded_for` tells afterwards whether that held.
    """
    if not capability.is_limited:
        return
    have = rank(capability.isa)
    for predicate, needed in (
        ("_is_amx_tile_supported", "amx"),
        ("_is_amx_fp16_supported", "amx"),
        ("_is_avx512_bf16_supported", "avx512_bf16"),
        ("_is_avx512_supported", "avx512"),
    ):
        if have < rank(needed):
            setattr(torch.cpu, predicate, _never)
    for name, value in _LIBRARY_LIMITS[capability.isa].items():
        os.environ.setdefault(name, value)


def loaded_for(capability: Capability) -> bool:
    """Whether the C extension that vLLM loaded is the build that ``capability`` asks for."""
    return has_op("flash_mla_with_kvcache_cpu") == capability.has_compiled_ops


def has_op(name: str) -> bool:
    """Whether ``torch.ops._C.<name>`` exists for the CPU."""
    full = f"_C::{name}"
    declared = full in torch._C._dispatch_get_all_op_names()
    return declared and torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")


def _never() -> bool:
    """Stands for a feature predicate of a processor without the feature."""
    return False
