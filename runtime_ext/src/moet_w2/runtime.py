"""W2Runtime: what one worker process knows of its W2 layers."""

from __future__ import annotations

import logging
import platform
from functools import cache
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.warmup import jit_warmup_tilelang_helper
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

from . import (
    audit_ranks,
    checkpoint,
    config,
    cuda_host,
    null_block,
    placement,
    preflight,
    refusals,
    synthetic,
    tilelang_warmup,
    topology,
)
from .audit import Audit
from .cache import key as cache_key
from .cache.session import Session
from .correction import build
from .correction.tier import Correction
from .draft_padding import DraftPadding
from .errors import ConfigError, UnsupportedError
from .geometry import LayerGeometry
from .host_memory import HostAllocation
from .kernels import block_scaled
from .layer import Shard, W2Layer
from .metrics import attach as metrics
from .metrics.reads import MappedReads
from .official import DSPARK_LAYERS
from .placement import LayerPlan, Placement
from .topology import Locality

logger = logging.getLogger("vllm.moet_w2")


class W2Runtime:
    """Plan, audit and layers of this process.

    Attributes:
        plan: which layer lives where.
        device: what computes.
        locality: the node that mapped layers lie on; None where the plan maps none.
        audit: the record of what was placed.
        cache: the cache of ready planes in use, or None.
        correction: the correction tier, or None.
        synthetic: what computes the experts where there is no checkpoint, else None.
        draft_padding: which rows of a draft step are none of a request's; None without draft layers.
        reads: counters of what mapped layers read; None where the plan maps none.
        layers: every W2 layer by its key.
    """

    def __init__(
        self,
        plan: LayerPlan,
        device: torch.device,
        locality: Locality | None,
        audit: Audit,
        cache: Session | None = None,
        correction: Correction | None = None,
        synthetic: synthetic.Experts | None = None,
        draft_padding: DraftPadding | None = None,
    ) -> None:
        self.plan, self.device, self.locality, self.audit = plan, device, locality, audit
        self.cache, self.correction, self.synthetic = cache, correction, synthetic
        self.draft_padding = draft_padding
        self.reads = MappedReads(plan.mapped, device) if plan.mapped else None
        self.layers: dict[int, W2Layer] = {}

    def create_layer(self, key: int, geometry: LayerGeometry, shard: Shard) -> W2Layer:
        """Give a layer its memory, once.

        Raises:
            UnsupportedError: the layer exists already.
            HostMemoryError: mapped memory could not be had.
        """
        if key in self.layers:
            raise UnsupportedError(f"layer {key} is built twice in one process; W2 keeps one copy of a layer")
        allocated = self._allocator_bytes()
        where, host = self.plan.placement(key), None
        if where is Placement.MAPPED and self.locality is not None:
            host, storage = self._map(key, geometry.nbytes, self.locality)
        else:
            storage = torch.empty(geometry.nbytes, dtype=torch.uint8, device=self.device)
        reads = None
        if where is Placement.MAPPED and self.reads is not None:
            reads = self.reads.words(key, geometry)
        layer = W2Layer(key, geometry, where, storage, host, shard, reads)
        self.layers[key] = layer
        if self.correction is not None:
            self.correction.created(layer)
        self.audit.created(layer, self._allocator_bytes() - allocated)
        return layer

    def fill_from_cache(self) -> None:
        """Read what the cache holds of the layers that wait for their tensors."""
        if self.cache is not None:
            waiting = [layer.key for layer in self.layers.values() if layer.on_codes is not None]
            self.cache.fill(self.layers.values(), withheld=waiting)

    def loaded(self, layer: W2Layer, redundant_bytes: int) -> None:
        """A layer is complete: note it, and keep it for the next start where it was built here."""
        if self.correction is not None:
            self.correction.loaded(layer)
        self.audit.loaded(layer, redundant_bytes)
        if self.cache is not None:
            self.cache.built(layer)

    def _map(self, key: int, nbytes: int, locality: Locality) -> tuple[HostAllocation, torch.Tensor]:
        on_cuda = self.device.type == "cuda"
        registrar = cuda_host.CudaRegistrar() if on_cuda else None
        host = HostAllocation(f"layer {key}", nbytes, locality, registrar)
        if host.device_address is None:
            return host, host.tensor()
        return host, cuda_host.device_view(host.device_address, nbytes, self.device)

    def _allocator_bytes(self) -> int:
        """Bytes that torch's allocator has handed out on the device; a CPU has no such allocator."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


@cache
def get() -> W2Runtime:
    """The process's runtime, built from the environment and the vLLM configuration that is being set up.

    Raises:
        MoetError: the settings, the checkpoint, the host memory or a combination with other vLLM options is
            refused. Nothing has been loaded yet then.
    """
    vllm_config = get_current_vllm_config()
    _refuse_unsupported(vllm_config)
    settings = config.load()
    config.check_load_format(settings, vllm_config.load_config.load_format)
    model = vllm_config.model_config
    plan = placement.plan(settings, model.hf_config.num_hidden_layers, _draft_layers(vllm_config))
    computed = vllm_config.load_config.load_format in synthetic.LOAD_FORMATS
    report = checkpoint.describe(model.model) if computed else checkpoint.inspect(model.model)
    device = _device()
    experts = synthetic.Experts(model.seed, report.geometry, device) if computed else None
    scaled = block_scaled.enabled(settings.block_scaled, device)
    if scaled:
        logger.warning("VLLM_MOE_W2_BLOCK_SCALED=1: unvalidated kernels with e4m3 activations serve up to 8 tokens")
    locality = _locality(settings, device) if plan.mapped else None
    shard = Shard(get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())
    whole = report.geometry
    share = LayerGeometry(whole.experts, whole.hidden, whole.width // shard.size)
    if locality is not None:
        preflight.check(len(plan.mapped) * share.nbytes, locality)
    cache = correction = None
    if settings.planes_cache is not None or settings.store_dir is not None:
        if experts is None:
            key = cache_key.make(report, share, shard)
        else:
            key = synthetic.key(experts, shard, plan.target_layers + plan.draft_layers)
        if settings.planes_cache is not None:
            cache = Session(settings.planes_cache, key, settings.load_workers, settings.load_batch_layers)
        correction = build.build(settings, plan, key, device, vllm_config, experts)
    audit = Audit(
        settings.audit_path and audit_ranks.place(settings.audit_path, shard.rank),
        plan,
        _describe(device, locality, scaled),
        correction and correction.facts(),
        shard,
        vllm_config.instance_id,
    )
    if correction is not None:
        correction.on_sized = audit.write
    if computed:
        logger.warning(
            "--load-format %s: routed experts are computed from seed %d, for benchmarks only; every answer is noise",
            vllm_config.load_config.load_format,
            model.seed,
        )
    null_block.attach(resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls))
    tilelang_warmup.attach(jit_warmup_tilelang_helper, device)
    padding = _draft_padding(vllm_config, device) if plan.draft_layers else None
    made = W2Runtime(plan, device, locality, audit, cache, correction, experts, padding)
    metrics.attach(made, vllm_config, settings.profile, shard.rank, shard.size)
    return made


def _draft_padding(vllm_config: VllmConfig, device: torch.device) -> DraftPadding:
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    padding = DraftPadding(vllm_config.scheduler_config.max_num_batched_tokens, device)
    padding.attach(DSparkSpeculator)
    return padding


def _device() -> torch.device:
    kind = current_platform.device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _locality(settings: config.W2Config, device: torch.device) -> Locality:
    if device.type == "cuda":
        pci = cuda_host.pci_address(device.index)
        return topology.gpu_locality(pci, settings.mapped_numa_node, settings.mapped_pci)
    if settings.mapped_pci is not None:
        raise ConfigError(f"VLLM_MOE_W2_MAPPED_PCI={settings.mapped_pci}: no GPU computes here; unset it")
    return topology.cpu_locality(settings.mapped_numa_node)


def _draft_layers(vllm_config: VllmConfig) -> int:
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "dspark":
        return 0
    return getattr(vllm_config.model_config.hf_config, "n_mtp_layers", None) or DSPARK_LAYERS


def _refuse_unsupported(vllm_config: VllmConfig) -> None:
    found = refusals.judge(refusals.from_vllm(vllm_config))
    if found:
        raise UnsupportedError(f"--quantization moet_w2 cannot serve this: {'; and '.join(map(str, found))}")


def _describe(device: torch.device, locality: Locality | None, scaled: bool) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    numa = None
    if locality is not None:
        numa = {"node": locality.node, "nodes": list(locality.nodes), "reason": locality.reason}
    facts = {"type": device.type, "name": name, "pci": locality and locality.pci, "numa": numa}
    return facts | {"block_scaled": True} if scaled else facts
