"""What the host decides before a kernel runs: sizes, workspace, refusals, parameters. No GPU."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from generators import TINY

from moet_w2.errors import MoetError, UnsupportedError
from moet_w2.geometry import LayerGeometry
from moet_w2.kernels import call, experts, params, shapes
from moet_w2.kernels.call import Call

FLASH = (256, 4096, 2048)


def step(plan: shapes.Plan, number: int) -> tuple:
    launch = plan.steps[number]
    return launch.source, launch.name, launch.grid, launch.block, launch.shared


@pytest.mark.parametrize(
    ("tokens", "kernel", "chunk"),
    [
        (1, "decode13_n8", 8),
        (8, "decode13_n8", 8),
        (9, "decode13_n16", 16),
        (17, "decode13_n32", 32),
        (32, "decode13_n32", 32),
        (33, "prefill13", 64),
        (8192, "prefill13", 64),
    ],
)
def test_kernels_follow_the_number_of_tokens(tokens: int, kernel: str, chunk: int) -> None:
    plan = shapes.plan(*FLASH, tokens, 6)
    assert [s.name for s in plan.steps] == [
        "moet_routing",
        f"moet_{kernel}",
        f"moet_{kernel.replace('13', '2')}",
        "moet_combine",
    ]
    assert plan.chunk == chunk


def test_launches_of_one_token_are_as_the_sources_state() -> None:
    plan = shapes.plan(*FLASH, 1, 6)
    tail = 6 * 48 + 6 * 12  # entries and places
    warp = 2 * 4 * 1152 + 4 * 16 * 8 * 4 + 4 * 32 * 16  # two stages of four row tiles, exponents, sums
    assert step(plan, 0) == ("routing", "moet_routing", (1, 1, 1), 256, 2 * 8 * 256)
    assert step(plan, 1) == ("decode", "moet_decode13_n8", None, 128, 4 * warp + tail)
    assert step(plan, 2) == ("decode", "moet_decode2_n8", None, 128, 4 * warp + tail)
    assert step(plan, 3) == ("combine", "moet_combine", (1, 2, 1), 256, 0)


def test_launches_of_many_tokens_are_as_the_sources_state() -> None:
    plan = shapes.plan(*FLASH, 2048, 6)
    assert step(plan, 0) == ("routing", "moet_routing", (1, 1, 1), 1024, 2 * 32 * 256)
    assert step(plan, 1) == ("prefill", "moet_prefill13", None, 256, 61440)
    assert step(plan, 3)[2] == (2048, 2, 1)
    wide = shapes.plan(*FLASH, 32, 6)
    warp = 3 * 2 * 1152 + 2 * 16 * 8 * 4 + 4 * 2 * 32 * 16  # three stages of two row tiles
    assert step(wide, 1)[3:] == (128, 4 * warp + (192 + 192 // 32) * 48 + 192 * 12)


@pytest.mark.parametrize(("cols", "warps"), [(128, 1), (512, 1), (640, 2), (1024, 2), (2048, 4), (4096, 4)])
def test_warps_follow_the_columns(cols: int, warps: int) -> None:
    assert shapes.plan(8, cols, 128, 1, 6).steps[1].block == 32 * warps


def test_no_decode_launch_needs_more_shared_memory_than_the_smallest_device_has() -> None:
    for tokens, top_k, count in itertools.product((1, 8, 16, 32, 64), (1, 6, 8, 16), (8, 256, 1024)):
        for launch in shapes.plan(count, 4096, 2048, tokens, top_k).steps:
            assert launch.shared <= shapes.MAX_SHARED


@pytest.mark.parametrize(("tokens", "top_k"), [(1, 6), (5, 6), (16, 2), (64, 6), (700, 8)])
def test_there_is_room_for_the_entries_of_any_routing(tokens: int, top_k: int) -> None:
    count = 8
    plan = shapes.plan(count, 256, 128, tokens, top_k)
    generator = torch.Generator().manual_seed(tokens)
    routings = [torch.randint(0, high, (tokens * top_k,), generator=generator) for high in (1, 2, 3, 8)]
    # The worst case: as many experts as possible hold one route more than whole chunks.
    worst = torch.arange(tokens * top_k) % count
    for ids in [*routings, worst]:
        per_expert = torch.bincount(ids, minlength=count)
        assert int((per_expert + plan.chunk - 1).div(plan.chunk, rounding_mode="floor").sum()) <= plan.entries


def test_workspace_parts_do_not_overlap_and_are_aligned() -> None:
    plan = shapes.plan(*FLASH, 5, 6)
    end = 0
    for offset, nbytes in plan.workspace.values():
        assert offset >= end and offset % 256 == 0
        end = offset + nbytes
    assert end <= plan.workspace_bytes
    views = plan.views(torch.zeros(plan.workspace_bytes, dtype=torch.uint8))
    assert views["entries"].shape == (30 + 30 // 8, ctypes.sizeof(params.Entry))
    assert (views["inner"].shape, views["inner"].dtype) == ((30, 2048), torch.bfloat16)
    assert (views["routed"].shape, views["routed"].dtype) == ((30, 4096), torch.float32)


@pytest.mark.parametrize(
    ("layer", "tokens", "top_k", "named"),
    [
        ((1025, 256, 128), 1, 6, "1..1024 experts, not 1025"),
        ((64, 256, 128), 1, 17, "1..16 experts a token, not 17"),
        ((64, 256, 128), 1, 0, "1..16 experts a token, not 0"),
        ((64, 200, 128), 1, 6, "hidden size that is a multiple of 128, got 200"),
        ((64, 256, 128), 65536, 1, "1..65535 routes"),
        ((1, 32896, 128), 1, 1, "1..32768 columns of hidden size, not 32896"),
        ((1, 128, 32896), 1, 1, "1..32768 columns of expert width, not 32896"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(layer, tokens, top_k, named) -> None:
    with pytest.raises(UnsupportedError, match=named):
        shapes.plan(*layer, tokens, top_k)


def test_elements_of_the_activations_can_be_counted_in_31_bits() -> None:
    assert shapes.MAX_ROUTES * shapes.MAX_COLS + shapes.MAX_COLS <= 1 << 31


def a_call(tokens: int = 3, top_k: int = 2, **changes) -> Call:
    made = Call(
        x=torch.zeros(tokens, TINY.hidden, dtype=torch.bfloat16),
        topk_weights=torch.zeros(tokens, top_k),
        topk_ids=torch.zeros(tokens, top_k, dtype=torch.int32),
        storage=torch.zeros(TINY.nbytes, dtype=torch.uint8),
        experts=TINY.experts,
        width=TINY.width,
    )
    return made._replace(**changes)


def rows(count: int = 2) -> torch.Tensor:
    return torch.zeros(count, TINY.correction_row_bytes, dtype=torch.uint8)


def slots() -> torch.Tensor:
    return torch.full((TINY.experts,), -1, dtype=torch.int32)


def test_good_calls_pass() -> None:
    call.check(a_call())
    call.check(a_call(0))
    call.check(a_call(topk_ids=torch.zeros(3, 2, dtype=torch.int64), topk_weights=torch.zeros(3, 2).bfloat16()))
    counts, padding = torch.zeros(TINY.experts, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
    reads = torch.zeros(2, dtype=torch.int64)
    call.check(a_call(rows=rows(), slots=slots(), counts=counts, padding=padding, reads=reads))
    call.check(a_call(rows=rows(0), slots=slots()))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"x": torch.zeros(3, 256)}, r"x is float32 \[3, 256\].*need bfloat16 \[3, 256\]"),
        ({"x": torch.zeros(3, 1, 256).bfloat16()}, r"x is bfloat16 \[3, 1, 256\]"),
        ({"x": torch.zeros(3, 512).bfloat16()[:, ::2]}, r"x is .*strides \[512, 2\].*contiguous\(\)"),
        ({"x": torch.zeros(3 * 256 + 1).bfloat16()[1:].view(3, 256)}, "x is .*multiple of 16 bytes"),
        ({"x": torch.zeros(3, 384).bfloat16()}, r"storage is uint8 .*pass what the layer was made for"),
        ({"topk_ids": torch.zeros(3, 2)}, r"topk_ids is float32 \[3, 2\].*integer"),
        ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32)}, r"topk_ids is int32 \[4, 2\].*\[3, 2\]"),
        ({"topk_ids": torch.zeros(3, 17, dtype=torch.int32)}, "experts a token, not 17"),
        ({"topk_weights": torch.zeros(3, 3)}, r"topk_weights is float32 \[3, 3\].*\[3, 2\]"),
        ({"topk_weights": torch.zeros(3, 2, dtype=torch.int32)}, "topk_weights is int32"),
        ({"storage": torch.zeros(TINY.nbytes - 1, dtype=torch.uint8)}, "storage is uint8"),
        ({"storage": torch.zeros(TINY.nbytes + 1, dtype=torch.uint8)[1:]}, "storage is .*multiple of 16 bytes"),
        ({"rows": rows()}, "rows and slots .*come together"),
        ({"slots": slots()}, "rows and slots .*come together"),
        ({"rows": rows()[:, :-1], "slots": slots()}, r"rows is uint8 \[2, 49151\].*\[-1, 49152\]"),
        ({"rows": rows(), "slots": slots().long()}, "slots is int64"),
        ({"counts": torch.zeros(TINY.experts, dtype=torch.int32)}, "counts is int32"),
        ({"padding": torch.zeros(4, dtype=torch.bool)}, r"padding is bool \[4\].*bool \[3\]"),
        ({"reads": torch.zeros(2, dtype=torch.int32)}, "reads is int32"),
        ({"reads": torch.zeros(3, dtype=torch.int64)}, r"reads is int64 \[3\].*int64 \[2\]"),
        ({"padding": torch.zeros(3, dtype=torch.bool, device="meta")}, "padding .* on meta.*move it to cpu"),
    ],
)
def test_bad_arguments_are_named_with_their_remedy(changes, named) -> None:
    with pytest.raises(MoetError, match=named) as caught:
        call.check(a_call(**changes))
    assert "\n" not in str(caught.value)


def test_long_batches_are_cut_into_what_can_be_counted(monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MAX_ROUTES", 5)
    whole = a_call(7, padding=torch.arange(7) % 2 == 0)
    out = torch.arange(7)
    cut = list(call.pieces(whole, out))
    assert [rows_of.tolist() for _, rows_of in cut] == [[0, 1], [2, 3], [4, 5], [6]]
    assert torch.equal(torch.cat([piece.padding for piece, _ in cut]), whole.padding)
    assert [len(piece.x) for piece, _ in cut] == [len(piece.topk_ids) for piece, _ in cut] == [2, 2, 2, 1]
    assert list(call.pieces(a_call(0), out)) == []
    whole = a_call(2)
    assert next(call.pieces(whole, out))[0] is whole


def test_parameters_point_into_the_layer_and_the_workspace() -> None:
    given = a_call(5, 2, rows=rows(), slots=slots(), limit=10.0)
    plan, geometry = given.plan, TINY
    workspace, out = torch.zeros(plan.workspace_bytes, dtype=torch.uint8), torch.empty(5, 256).bfloat16()
    routing, first, second, combine = experts.parameters(plan, given, workspace, out)
    for field, part in (("planes13", "planes13"), ("scales13", "sc13"), ("planes2", "planes2"), ("scales2", "sc2")):
        assert getattr(routing, field) == given.storage.data_ptr() + geometry.parts[part].offset
        assert getattr(routing, field + "_bytes") == geometry.parts[part].row_bytes
    assert (routing.tokens, routing.top_k, routing.experts, routing.chunk) == (5, 2, 4, 8)
    assert (routing.row_bytes, routing.row_down_offset) == (3 * 128 * 256 // 2, 128 * 256)
    assert (routing.rows, routing.slots, routing.counts) == (given.rows.data_ptr(), given.slots.data_ptr(), 0)
    assert routing.reads == 0
    reads = torch.zeros(2, dtype=torch.int64)
    counted = experts.parameters(plan, given._replace(reads=reads), workspace, out)
    assert counted[0].reads == reads.data_ptr() and counted[0].counts == 0
    views = plan.views(workspace)
    assert first.entries == second.entries == routing.entries == views["entries"].data_ptr()
    assert first.routes == second.routes == routing.routes == views["routes"].data_ptr()
    assert (first.x, first.inner, first.routed) == (given.x.data_ptr(), views["inner"].data_ptr(), 0)
    assert (second.x, second.routed) == (first.inner, views["routed"].data_ptr())
    assert (first.cols, first.out_cols, second.cols, second.out_cols) == (256, 128, 128, 256)
    assert first.limit == 10.0 and (first.max_entries, first.max_routes) == (plan.entries, 10)
    assert (combine.routed, combine.out, combine.hidden) == (second.routed, out.data_ptr(), 256)
    without = experts.parameters(plan, given._replace(limit=None), workspace, out)
    assert without[1].limit == float("inf")


def test_correction_rows_are_laid_out_as_the_kernels_read_them() -> None:
    from moet_w2.correction import codes

    geometry = LayerGeometry(2, 512, 128)
    down = codes.row_slices(geometry)["w2"]
    plan = shapes.plan(2, 512, 128, 1, 1)
    assert down.start == plan.row_bytes * 2 // 3 and down.stop == plan.row_bytes
