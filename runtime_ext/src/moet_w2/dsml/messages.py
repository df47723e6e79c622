"""Response objects for every token, built without validation.

A streamed string argument makes one message a token, of three nested pydantic models; validating them, or pydantic's
own ``model_construct``, takes longer than all of the parsing. What goes in here was made by the parser, so an instance
is laid out from a template that pydantic built once. A test holds the result equal to a validated one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)
_set = object.__setattr__


@cache
def _template(model: type[BaseModel]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """A model's defaults, which of them are lists, and whether it takes extra fields."""
    made = model.model_construct()
    lists = tuple(name for name, value in made.__dict__.items() if isinstance(value, list))
    return dict(made.__dict__), lists, made.__pydantic_extra__ is not None


def build(model: type[Model], **fields: Any) -> Model:
    """An instance with these fields set and the rest at their defaults."""
    defaults, lists, extra = _template(model)
    values = defaults | fields
    for name in lists:
        if name not in fields:
            values[name] = []
    made = model.__new__(model)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", {} if extra else None)
    _set(made, "__pydantic_private__", None)
    return made
