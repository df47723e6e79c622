"""CACHE_ROOT: the one folder below which a server keeps what it builds, so that it can be moved, measured and deleted.

CACHE_ROOT/             default: moet/ in XDG_CACHE_HOME, which is ~/.cache where it is not set
  jit/triton, ...       what compilers of the stack build at run time
  planes/               ready planes (MOET_PLANES_CACHE_DIR names another folder)
  store/                the correction pack (MOET_STORE_DIR names another folder)
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import DUMMY_FORMAT, LOAD_FORMAT, SYNTHETIC_FORMAT
from .errors import RecipeError
from .overrides import Overrides
from .recipe import Recipe

PLANES, STORE = "planes", "store"

PLANES_FORMATS = (LOAD_FORMAT,)
STORE_FORMATS = (LOAD_FORMAT, SYNTHETIC_FORMAT, DUMMY_FORMAT)
"""Load formats that fill and read the folder; where weights are made up, the store keeps the warm set alone."""


@dataclass(frozen=True)
class JitCache:
    """Where one compiler of the stack keeps what it has built.

    Attributes:
        variable: the variable that moves it.
        folder: its folder below ``CACHE_ROOT/jit``.
        read_by: distribution, and the file in it that reads the variable: what the test of this table opens where
            the distribution is installed.
    """

    variable: str
    folder: str
    read_by: tuple[str, str]


_TRTLLM_COMPILER = "flashinfer/data/csrc/nv_internal/tensorrt_llm/deep_gemm/compiler.cuh"

JIT_CACHES = (
    JitCache("VLLM_CACHE_ROOT", "vllm", ("vllm", "vllm/envs.py")),
    # vLLM sets it below VLLM_CACHE_ROOT where it is not set; the DeepGEMM that it ships reads it.
    JitCache("DG_JIT_CACHE_DIR", "deep_gemm", ("vllm", "vllm/utils/deep_gemm.py")),
    JitCache("TRITON_CACHE_DIR", "triton", ("triton", "triton/knobs.py")),
    JitCache("TORCHINDUCTOR_CACHE_DIR", "inductor", ("torch", "torch/_inductor/runtime/cache_dir_utils.py")),
    JitCache("TORCH_EXTENSIONS_DIR", "torch_extensions", ("torch", "torch/utils/cpp_extension.py")),
    JitCache("TVM_FFI_CACHE_DIR", "tvm_ffi", ("apache-tvm-ffi", "tvm_ffi/cpp/extension.py")),
    JitCache("TILELANG_CACHE_DIR", "tilelang", ("tilelang", "tilelang/env.py")),
    # The base: FlashInfer's kernels, cubins and autotuning lie in .cache/flashinfer below it.
    JitCache("FLASHINFER_WORKSPACE_BASE", "flashinfer", ("flashinfer-python", "flashinfer/jit/env.py")),
    # Its block-scaled GEMMs of few rows are compiled by a DeepGEMM of their own, otherwise into ~/.tensorrt_llm.
    JitCache("TRTLLM_DG_CACHE_DIR", "trtllm_deep_gemm", ("flashinfer-python", _TRTLLM_COMPILER)),
    # Read as <name of the DSL>_CACHE_DIR there; spelled out by FlashInfer, which sets it where it is not set.
    JitCache("CUTE_DSL_CACHE_DIR", "cute_dsl", ("flashinfer-python", "flashinfer/prims_ts/utils.py")),
    JitCache("QUACK_CACHE_DIR", "quack", ("quack-kernels", "quack/cache/__init__.py")),
    JitCache("HUMMING_CACHE_DIR", "humming", ("humming-kernels", "humming/utils/jit.py")),
    JitCache("HUMMING_TMP_DIR", "humming_tmp", ("humming-kernels", "humming/utils/jit.py")),
    JitCache("CUDA_TILE_CACHE_DIR", "cuda_tile", ("cuda-tile", "cutile_cache/_env.py")),
    # PTX that the driver compiles: CUDA C++ Programming Guide, section "CUDA Environment Variables".
    JitCache("CUDA_CACHE_PATH", "cuda", ("", "libcuda.so")),
)


def jit_environment(recipe: Recipe, overrides: Overrides) -> dict[str, str]:
    """The variables that bring every compiler's cache below CACHE_ROOT.

    On a CPU they stay where they are unless CACHE_ROOT is named: little is compiled there.
    """
    if overrides.cache_root is None and not _on_cuda(recipe):
        return {}
    return {cache.variable: str(overrides.root / "jit" / cache.folder) for cache in JIT_CACHES}


def folders(recipe: Recipe, overrides: Overrides) -> dict[str, str]:
    """Settings of the folders that a first start fills and later ones read.

    Unless one is named: a correction has its store, and a GPU's checkpoint its ready planes, both below CACHE_ROOT.

    Raises:
        RecipeError: a folder is named that the recipe's load format never fills.
    """
    load_format = SYNTHETIC_FORMAT if recipe.model.synthetic else recipe.engine.get("load-format", LOAD_FORMAT)
    store, planes = overrides.store_dir, overrides.planes_cache_dir
    if store is None and recipe.w2.correction.gb and load_format in STORE_FORMATS:
        store = overrides.root / STORE
    if planes is None and _on_cuda(recipe) and load_format in PLANES_FORMATS:
        planes = overrides.root / PLANES
    chosen = {}
    for name, folder, formats in (
        ("VLLM_MOE_W2_STORE_DIR", store, STORE_FORMATS),
        ("VLLM_MOE_W2_PLANES_CACHE", planes, PLANES_FORMATS),
    ):
        if folder is not None and load_format not in formats:
            raise RecipeError(
                f"{recipe.file}: engine.load-format = {load_format} never fills {name}; "
                "remove it from the recipe, or unset MOET_STORE_DIR and MOET_PLANES_CACHE_DIR"
            )
        if folder is not None:
            chosen[name] = str(folder.absolute())
    return chosen


def _on_cuda(recipe: Recipe) -> bool:
    return recipe.device is not None and recipe.device.kind == "cuda"
