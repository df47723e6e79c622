"""The kernels' parameter structs: mirrors of kernels/include/params.cuh, field by field.

Pointers are device addresses, as integers. A field's meaning and shape stand in the header.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_uint64

_POINTER = c_uint64


class Entry(Structure):
    """One expert with up to ``chunk`` of its tokens; written by the routing kernel, never by the host."""

    _fields_ = [
        ("weights13", c_uint64),
        ("weights2", c_uint64),
        ("scales13", c_uint64),
        ("scales2", c_uint64),
        ("first", c_int32),
        ("count", c_int32),
        ("fp4", c_int32),
        ("expert", c_int32),
    ]


class RoutingParams(Structure):
    """Of ``moet_routing``."""

    _fields_ = [
        ("ids", _POINTER),
        ("padding", _POINTER),
        ("slots", _POINTER),
        ("rows", _POINTER),
        ("counts", _POINTER),
        ("reads", _POINTER),
        ("planes13", _POINTER),
        ("scales13", _POINTER),
        ("planes2", _POINTER),
        ("scales2", _POINTER),
        ("entries", _POINTER),
        ("header", _POINTER),
        ("routes", _POINTER),
        ("planes13_bytes", c_int64),
        ("scales13_bytes", c_int64),
        ("planes2_bytes", c_int64),
        ("scales2_bytes", c_int64),
        ("row_bytes", c_int64),
        ("row_down_offset", c_int64),
        ("tokens", c_int32),
        ("top_k", c_int32),
        ("experts", c_int32),
        ("chunk", c_int32),
    ]


class GemmParams(Structure):
    """Of the first and of the second GEMM, for few tokens or many."""

    _fields_ = [
        ("entries", _POINTER),
        ("header", _POINTER),
        ("routes", _POINTER),
        ("x", _POINTER),
        ("inner", _POINTER),
        ("routed", _POINTER),
        ("weights", _POINTER),
        ("cols", c_int32),
        ("out_cols", c_int32),
        ("top_k", c_int32),
        ("max_entries", c_int32),
        ("max_routes", c_int32),
        ("limit", c_float),
    ]


class CombineParams(Structure):
    """Of ``moet_combine``."""

    _fields_ = [
        ("ids", _POINTER),
        ("padding", _POINTER),
        ("routed", _POINTER),
        ("out", _POINTER),
        ("tokens", c_int32),
        ("top_k", c_int32),
        ("hidden", c_int32),
        ("experts", c_int32),
    ]


STRUCTS = (Entry, RoutingParams, GemmParams, CombineParams)
