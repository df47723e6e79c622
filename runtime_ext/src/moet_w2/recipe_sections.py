"""The mappings of a recipe below its top level."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from .geometry import LayerGeometry
from .recipe_fields import AUTO, Capability, Gibibytes, LayerKeys, Positive, Slots, Text


class Section(BaseModel):
    """A mapping of a recipe: frozen, and no other keys than these."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class GeometrySection(Section):
    """Shape of one layer of routed experts on one rank; with it the byte counts are checked."""

    experts: Positive
    hidden: Positive
    width: Positive

    @property
    def layer(self) -> LayerGeometry:
        return LayerGeometry(self.experts, self.hidden, self.width)


class ModelSection(Section):
    """What is served.

    Attributes:
        path: the checkpoint's folder, relative to the repository's root or absolute.
        served_name: the name under which the API serves it.
        geometry: one layer of its routed experts; with it the byte counts are checked.
        synthetic: the folder holds a config.json alone, and every weight is made up: for benchmarks at full size.
    """

    path: Text
    served_name: Text
    geometry: GeometrySection | None = None
    synthetic: StrictBool = False


class Device(Section):
    """What a recipe is made for.

    Attributes:
        kind: what vLLM runs on.
        capability: CUDA compute capabilities that it may run on; None: every one that there are kernels for.
        vram_gib: memory of the card, in GiB as CUDA reports its total, that ``gpu-memory-utilization`` is chosen for.
    """

    kind: Literal["cuda", "cpu"]
    capability: tuple[Capability, ...] | None = None
    vram_gib: Gibibytes | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Device:
        if self.kind == "cpu" and (self.capability is not None or self.vram_gib is not None):
            raise ValueError("a cpu has neither capability nor vram_gib; remove them")
        return self


class Correction(Section):
    """FP4 correction: its size, which experts take its slots, and the layers that never take one.

    Attributes:
        gb: GiB of slots, or ``auto``: what a KV cache of one full-length request leaves; 0 for none.
        policy: which experts get a slot.
        prefill_fp4: whether prefill reads resident slots too.
        exclude_layers: ascending keys of the layers that never take a slot.
    """

    gb: Slots = 0
    policy: Literal["freq", "lru"] = "freq"
    prefill_fp4: StrictBool = True
    exclude_layers: LayerKeys = ()

    @property
    def nbytes(self) -> int | None:
        """Bytes of all slots, before they are rounded down to whole rows; None where the server chooses."""
        return None if self.gb == AUTO else int(self.gb * 2**30)


class W2Section(Section):
    """Placement of the 2-bit experts."""

    mapped_layers: LayerKeys
    correction: Correction = Correction()

    @property
    def exclude_layers(self) -> tuple[int, ...]:
        """Ascending keys of the layers that never take a correction slot."""
        return self.correction.exclude_layers


class Expect(Section):
    """What a server started from this recipe must report."""

    max_model_len: Positive
    mapped_layers: LayerKeys
    mapped_bytes: Annotated[StrictInt, Field(ge=0)]
    w2_layers: Positive
