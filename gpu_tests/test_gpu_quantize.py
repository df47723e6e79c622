"""Quantising and packing on the GPU gives the bytes of the CPU path: every shape, share and kind of zeros."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime_ext" / "tests"))

from generators import PLANE_SHAPES, TINY, expert_tensors

from moet_w2 import codebook, cuda_host, planes
from moet_w2.correction import codes as fp4
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation
from moet_w2.kernels import quantize
from moet_w2.layer import Shard, W2Layer
from moet_w2.placement import Placement
from moet_w2.topology import Locality

pytestmark = pytest.mark.gpu

REAL = LayerGeometry(experts=1, hidden=4096, width=2048)
GUARD = 4096
# Share of nibbles that are zeros, and of zeros that are negative. 0.95 of a count that 20 divides is the rule's edge.
ZEROS = {
    "even": (1 / 8, 0.5),
    "mostly positive": (0.7, 0.02),
    "mostly negative": (0.7, 0.98),
    "all positive": (1.0, 0.0),
    "all negative": (1.0, 1.0),
    "none": (0.0, 0.0),
    "exactly 95% positive": (1.0, 0.05),
    "just over 95% positive": (1.0, -0.05),
}
SHARES = [(dim, size, rank) for dim in (0, 1) for size in (1, 2, 4) for rank in range(size) if (dim, size) != (1, 1)]
SHAPES = [*PLANE_SHAPES, (48, 640), (112, 1152)]
PLANE_CASES = [
    (rows, cols, zeros)
    for rows, cols in SHAPES
    for zeros in ZEROS
    if rows * cols < 1 << 20 or zeros in ("even", "mostly negative", "just over 95% positive")
]


def make_codes(rows: int, cols: int, zeros: str, seed: int = 0) -> torch.Tensor:
    """uint8 ``[rows, cols / 2]`` with an exact number of zeros and of negative zeros, scattered."""
    zero_share, negative_share = ZEROS[zeros]
    generator = torch.Generator().manual_seed(seed)
    total = rows * cols
    nibbles = torch.randint(1, 8, (total,), dtype=torch.uint8, generator=generator)
    nibbles |= torch.randint(0, 2, (total,), dtype=torch.uint8, generator=generator) << 3
    # The edge of the rule needs a number of zeros that 20 divides.
    count = int(zero_share * total) // 20 * 20 if abs(negative_share) == 0.05 else int(zero_share * total)
    negative = round(abs(negative_share) * count) - (1 if negative_share < 0 else 0)
    places = (torch.arange(count) * 7919 + seed) % total  # all different: the prime divides no size here
    nibbles[places] = 0
    nibbles[places[:negative]] = 8
    nibbles = nibbles.view(rows, cols)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def share_of(tensor: torch.Tensor, share: tuple[int, int, int]) -> torch.Tensor:
    dim, size, rank = share
    return tensor.chunk(size, dim)[rank]


def tiles(rows: int, cols: int, share: tuple[int, int, int]) -> bool:
    dim, size, _ = share
    return (rows // size) % 16 == 0 if dim == 0 else (cols // size) % 128 == 0


class Room:
    """A destination between guards, which must stay as they are."""

    def __init__(self, nbytes: int) -> None:
        self.whole = torch.full((nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8, device="cuda")
        self.out = self.whole[GUARD : GUARD + nbytes]

    def check(self, expected: torch.Tensor, what: str) -> None:
        check(self.out.cpu(), expected, what)
        assert bool((self.whole[:GUARD] == 0xA5).all()) and bool((self.whole[-GUARD:] == 0xA5).all()), what


def check(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    wrong = torch.nonzero(found != expected).flatten()
    assert not len(wrong), f"{what}: {len(wrong)} of {len(expected)} bytes differ, first at {wrong[:8].tolist()}"


@pytest.mark.parametrize(("rows", "cols", "zeros"), PLANE_CASES)
def test_planes_are_the_cpus(rows: int, cols: int, zeros: str) -> None:
    codes = make_codes(rows, cols, zeros)
    on_device, two_bit = codes.cuda(), codebook.to_two_bit(codes)
    done = 0
    for share in [share for share in SHARES if tiles(rows, cols, share)]:
        expected = planes.pack_codes(share_of(two_bit, share))
        room = Room(expected.numel())
        quantize.pack_planes(on_device, share_of(on_device, share), room.out)
        room.check(expected, f"planes {rows} x {cols}, {zeros} zeros, share {share}")
        done += 1
    assert torch.equal(on_device.cpu(), codes)
    print(f"planes {rows} x {cols}, {zeros} zeros: {done} shares equal")


@pytest.mark.parametrize("zeros", ["exactly 95% positive", "just over 95% positive"])
def test_a_tensor_beyond_one_pass_of_the_counting_blocks(zeros: str) -> None:
    codes = make_codes(6144, 6144, zeros)
    assert quantize.count_blocks(2 * codes.nbytes) == quantize.count_blocks(codes.nbytes)
    expected = planes.pack_codes(codebook.to_two_bit(codes))
    room = Room(expected.numel())
    quantize.pack_planes(codes.cuda(), codes.cuda(), room.out)
    room.check(expected, f"planes 6144 x 6144, {zeros} zeros")


@pytest.mark.parametrize("zeros", ["exactly 95% positive", "just over 95% positive"])
def test_the_edge_of_the_rule_for_zeros_is_met(zeros: str) -> None:
    codes = make_codes(256, 320 * 4, zeros)
    by_sign = torch.where(codes & 8 != 0, 1, 2) | torch.where(codes & 128 != 0, 1, 2) << 4
    rewritten = not torch.equal(codebook.to_two_bit(codes), by_sign.to(torch.uint8))
    assert rewritten == zeros.startswith("just")


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_fp4_codes_and_scales_are_the_cpus(rows: int, cols: int) -> None:
    generator = torch.Generator().manual_seed(rows + cols)
    codes = torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, (rows, cols // 32), dtype=torch.uint8, generator=generator)
    done = 0
    for share in [share for share in SHARES if tiles(rows, cols, share)]:
        for name, source, on_cpu, on_gpu in (
            ("fp4", codes, fp4.pack, quantize.pack_fp4),
            ("scales", scales, planes.pack_scales, quantize.pack_scales),
        ):
            expected = on_cpu(share_of(source, share))
            room = Room(expected.numel())
            on_gpu(share_of(source.cuda(), share), room.out)
            room.check(expected, f"{name} {rows} x {cols}, share {share}")
            done += 1
    print(f"FP4 codes and scales {rows} x {cols}: {done} equal")


@pytest.fixture
def mapped() -> Iterator[torch.Tensor]:
    """Mapped host memory of one real expert, seen from the device."""
    host = HostAllocation("layer 0", REAL.nbytes, Locality(0, (0,), "the only node"), cuda_host.CudaRegistrar())
    yield cuda_host.device_view(host.device_address, REAL.nbytes, torch.device("cuda", torch.cuda.current_device()))
    torch.cuda.synchronize()
    host.close()


def fill(layer: W2Layer, tensors: dict) -> list[torch.Tensor]:
    """Put every tensor; gives the correction rows' parts in the order of arrival."""
    rows: list[torch.Tensor] = []
    layer.on_codes = lambda expert, projection, codes: rows.append(fp4.pack(codes).cpu())
    for place, tensor in tensors.items():
        layer.put(*place, tensor)
    return rows


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("geometry", [TINY, REAL], ids=["tiny", "real"])
def test_a_layer_is_the_cpus(geometry: LayerGeometry, size: int) -> None:
    whole = LayerGeometry(geometry.experts, geometry.hidden, max(geometry.width, 128 * size))
    part = LayerGeometry(whole.experts, whole.hidden, whole.width // size)
    tensors = expert_tensors(whole)
    for rank in range(size):
        made = {}
        for device in ("cpu", "cuda"):
            storage = torch.full((part.nbytes,), 0xA5, dtype=torch.uint8, device=device)
            layer = W2Layer(0, part, Placement.DEVICE, storage, shard=Shard(rank, size))
            made[device] = fill(layer, tensors), storage
            assert layer.complete
        check(made["cuda"][1].cpu(), made["cpu"][1], f"{geometry}, rank {rank} of {size}")
        assert all(map(torch.equal, made["cuda"][0], made["cpu"][0])) and made["cpu"][0]
    print(f"layer {whole}: {size} ranks equal, with their correction rows")


def test_a_mapped_layer_is_the_cpus(mapped: torch.Tensor) -> None:
    tensors = expert_tensors(REAL)
    expected = torch.empty(REAL.nbytes, dtype=torch.uint8)
    fill(W2Layer(0, REAL, Placement.DEVICE, expected), tensors)
    mapped.fill_(0xA5)
    fill(W2Layer(0, REAL, Placement.MAPPED, mapped), tensors)
    check(mapped.cpu(), expected, "mapped layer")


def test_many_tensors_in_flight_do_not_disturb_each_other() -> None:
    """Fifty tensors, whose rules for zeros differ, without a wait between them and on a stream of their own."""
    kinds = [list(ZEROS)[number % len(ZEROS)] for number in range(50)]
    sources = [make_codes(256, 256, kind, seed) for seed, kind in enumerate(kinds)]
    on_device = [source.cuda() for source in sources]
    rooms = [Room(256 * 256 // 4) for _ in sources]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for codes, room in zip(on_device, rooms, strict=True):
            quantize.pack_planes(codes, codes, room.out)
    torch.cuda.synchronize()
    for codes, room, kind in zip(sources, rooms, kinds, strict=True):
        room.check(planes.pack_codes(codebook.to_two_bit(codes)), kind)


def test_codes_on_the_device_are_quantised_without_a_wait() -> None:
    geometry = LayerGeometry(experts=1, hidden=256, width=128)
    codes = expert_tensors(geometry)[0, "w1", "weight"].cuda()
    layer = W2Layer(0, geometry, Placement.DEVICE, torch.empty(geometry.nbytes, dtype=torch.uint8, device="cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer.put(0, "w1", "weight", codes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
