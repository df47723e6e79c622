"""Types of a recipe's values that YAML alone does not give: layer lists, engine options, variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictFloat, StrictInt, StrictStr

LAUNCHER_OPTIONS = ("model", "served-model-name", "host", "port", "quantization", "api-key")
"""Options of ``vllm serve`` that the launcher writes itself: not allowed under ``engine``."""

RESERVED_ENVIRONMENT = ("VLLM_MOE_W2", "VLLM_API_KEY")
"""Prefixes of variables that have a place of their own: not allowed under ``environment``."""

_SCALARS = (bool, int, float, str)


def _layer_list(keys: tuple[int, ...]) -> tuple[int, ...]:
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"layer key {key} is named twice; name each layer once")
    return tuple(sorted(keys))


def _engine(options: Any) -> dict[str, Any]:
    if not isinstance(options, dict):
        raise ValueError("must be a mapping of vllm serve options to values")
    for option, value in options.items():
        if not isinstance(option, str) or option != option.strip("-").lower() or "_" in option:
            raise ValueError(f"{option!r}: write the long name of the option, as in max-model-len")
        if option in LAUNCHER_OPTIONS:
            raise ValueError(f"{option} is written by the launcher; remove it here")
        items = value if isinstance(value, list) else [value]
        if not isinstance(value, dict) and not all(isinstance(item, _SCALARS) for item in items):
            raise ValueError(f"{option}: {value!r} is neither a scalar, a list of scalars nor a mapping")
    return options


def _environment(variables: Any) -> dict[str, str]:
    if not isinstance(variables, dict):
        raise ValueError("must be a mapping of variable names to values")
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is not the name of an environment variable")
        if name.startswith(RESERVED_ENVIRONMENT):
            raise ValueError(f"{name} does not belong here; settings of moet_w2 are given under w2")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{name}: {value!r} must be text or a number; quote words such as 'on' and 'no'")
    return {name: str(value) for name, value in variables.items()}


def _slots(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    if not number and value != AUTO:
        raise ValueError(f"{value!r} is not a size; give GiB, such as 6 or 0.25, {AUTO}, or 0 for none")
    return value


AUTO = "auto"
"""Size of the correction: what a KV cache of one full-length request leaves."""

LayerKey = Annotated[StrictInt, Field(ge=0)]
LayerKeys = Annotated[tuple[LayerKey, ...], AfterValidator(_layer_list)]
Positive = Annotated[StrictInt, Field(gt=0)]
Gibibytes = Annotated[StrictInt | StrictFloat, Field(gt=0)]
Slots = Annotated[Any, BeforeValidator(_slots)]
Capability = Annotated[StrictStr, Field(pattern=r"^\d{1,2}\.\d$")]
Text = Annotated[StrictStr, Field(min_length=1)]
Engine = Annotated[Mapping[str, Any], BeforeValidator(_engine), AfterValidator(MappingProxyType)]
Environment = Annotated[Mapping[str, str], BeforeValidator(_environment), AfterValidator(MappingProxyType)]
