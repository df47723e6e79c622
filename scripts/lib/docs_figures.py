"""The figures of HOW-IT-WORKS.md: drawn from the profiles and the geometry, so that no number in them is typed.

`make docs-check` holds docs/figures against them; `scripts/lib/docs_check.py --draw` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from docs_source import ROOT, Fault
from docs_svg import DEVICE, HOST, REST, SLOTS, Drawing

from moet_w2 import recipe
from moet_w2.linux import HUGE_PAGE

FOLDER = "docs/figures"
PROFILE = "bench/recipes/pro6000-512k.yaml"


def figures() -> dict[str, str]:
    """File name -> SVG text of every figure."""
    drawn = {"memory-map": memory_map(), "mapped-layer": mapped_layer(), "correction-slot": correction_slot()}
    return {f"{name}.svg": drawing.svg() for name, drawing in drawn.items()}


def faults() -> Iterator[Fault]:
    """Figures that are missing, or other than what is drawn now."""
    for name, svg in figures().items():
        path = ROOT / FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != svg:
            yield Fault(f"{FOLDER}/{name}", 1, "is not what is drawn now; run scripts/lib/docs_check.py --draw")


def write() -> None:
    """Write every figure."""
    (ROOT / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, svg in figures().items():
        (ROOT / FOLDER / name).write_text(svg, encoding="utf-8")


def memory_map() -> Drawing:
    """Where the bytes of the 512k profile lie."""
    profile = recipe.load(ROOT / PROFILE)
    layer = profile.model.geometry.layer
    mapped, correction = profile.w2.mapped_layers, profile.w2.correction
    first = [key for key in range(profile.expect.w2_layers) if key not in mapped]
    slots = correction.nbytes // layer.correction_row_bytes
    card = f"{profile.device.vram_gib:g} GiB"
    drawing = Drawing(f"Memory of the profile {profile.name}", 960, 512)
    put, box = drawing.text, drawing.box
    put(20, 28, f"Profile {profile.name}: where its bytes lie", 16, bold=True)

    put(20, 62, f"GPU, {card} as CUDA reports it", bold=True)
    put(20, 82, f"share {profile.engine['gpu-memory-utilization']:g} of it", 12, soft=True)
    box(20, 96, 250, 190, DEVICE)
    drawing.lines(
        32,
        120,
        [
            f"W2 layers {first[0]} to {first[-1]}",
            f"{len(first)} x {layer.nbytes:,} bytes",
            f"= {len(first) * layer.nbytes / 2**30:.2f} GiB",
        ],
    )
    box(20, 286, 250, 54, SLOTS)
    drawing.lines(
        32, 308, [f"correction pool: {slots} slots", f"x {layer.correction_row_bytes:,} bytes = {correction.gb:g} GiB"]
    )
    box(20, 340, 250, 120, REST)
    drawing.lines(
        32,
        364,
        [
            "everything that is no routed expert,",
            "workspace, graphs; the KV cache",
            "takes what is left of the share",
        ],
    )
    put(32, 444, "slot table and routing counters", 12)

    put(345, 62, "Host, locked, on the GPU's NUMA node", bold=True)
    put(345, 82, f"{len(mapped)} allocations, {profile.expect.mapped_bytes:,} bytes", 12, soft=True)
    for number, key in enumerate(mapped):
        box(345, 96 + number * 46, 210, 38, HOST)
        excluded = key in correction.exclude_layers
        drawing.lines(
            355, 112 + number * 46, [f"layer {key}: {'draft' if excluded else 'target'}",
                                     "never corrected" if excluded else "may be corrected"], 11
        )  # fmt: skip
        drawing.line(345, 115 + number * 46, 272, 150 + number * 8, dashed=True, arrow=True)
    put(345, 300, "read by the kernels over PCIe, where they lie", 12, soft=True)

    put(690, 62, "One layer", bold=True)
    put(690, 82, f"{layer.nbytes:,} bytes", 12, soft=True)
    top, height, at = 96, 250, 0.0
    for part, fill in zip(layer.parts.values(), (DEVICE, REST, DEVICE, REST), strict=True):
        h = height * part.nbytes / layer.nbytes
        box(690, top + at, 110, h, fill)
        put(810, top + at + max(11, h / 2 + 4), f"{part.name}  {part.nbytes:,}", 11)
        at += h
    put(690, 366, "planes: 2 bits a weight; sc: block scales", 11, soft=True)

    put(345, 350, "Disk, below CACHE_ROOT", bold=True)
    box(345, 362, 210, 38, HOST, dashed=True)
    planes = profile.expect.w2_layers * layer.nbytes
    drawing.lines(355, 378, ["planes/: every layer, ready", f"{planes:,} bytes"], 11)
    box(345, 408, 210, 38, SLOTS, dashed=True)
    targets = profile.expect.w2_layers - len(correction.exclude_layers)
    rows = targets * layer.experts * layer.correction_row_bytes
    drawing.lines(355, 424, ["store/: FP4 rows of target layers", f"{rows:,} bytes"], 11)
    put(20, 490, "Not to scale but for the four parts of one layer.", 11, soft=True)
    return drawing


_LIFE = (
    ("reserve", ["address space,", f"{HUGE_PAGE >> 20} MiB aligned"]),
    ("bind", ["pages only from", "the GPU's node"]),
    ("touch", ["zeros, by threads", "on that node"]),
    ("lock", ["mlock:", "never swapped"]),
    ("verify", ["node of every", "page asked"]),
    ("register", ["CUDA: mapped,", "pointer checked"]),
    ("in use", ["kernels and", "captured graphs"]),
)
_UNDO = {"reserve": "unmap", "lock": "unlock", "register": "synchronise, unregister"}


def mapped_layer() -> Drawing:
    """Steps of one allocation, and what undoes them."""
    drawing = Drawing("Life of a mapped layer", 980, 250)
    drawing.text(20, 28, "Life of a mapped layer", 16, bold=True)
    for number, (name, words) in enumerate(_LIFE):
        x = 20 + number * 136
        drawing.box(x, 50, 116, 70, SLOTS if name == "in use" else HOST)
        drawing.text(x + 58, 70, name, 13, "middle", bold=True)
        drawing.lines(x + 58, 90, words, 11, "middle", soft=True)
        if number:
            drawing.line(x - 20, 85, x - 2, 85, arrow=True)
    drawing.line(20 + 6 * 136 + 58, 120, 20 + 6 * 136 + 58, 176)
    drawing.line(20 + 6 * 136 + 58, 176, 22, 176, arrow=True)
    drawing.text(20 + 6 * 136 + 52, 168, "close", 12, "end", bold=True)
    for number, (name, _) in enumerate(_LIFE):
        if name in _UNDO:
            x = 20 + number * 136 + 58
            drawing.line(x, 120, x, 172, dashed=True, arrow=True)
            drawing.text(x + 6, 146, _UNDO[name], 11)
    drawing.lines(
        20,
        206,
        [
            "A step that fails runs the undos so far, newest first, and names layer, bytes, node and remedy.",
            "The module owns the allocation, not a Python object: a captured graph holds a bare pointer to it.",
        ],
        12,
        soft=True,
    )
    return drawing


def correction_slot() -> Drawing:
    """One slot changing hands, against the steps of the server."""
    drawing = Drawing("Life of a correction slot", 980, 330)
    drawing.text(20, 28, "Life of a correction slot: an expert leaves, another comes", 16, bold=True)
    lanes = {"steps": 70, "table[leaver]": 130, "bytes of slot s": 190, "table[newcomer]": 250}
    for name, y in lanes.items():
        drawing.text(20, y + 5, name, 12, bold=True)
    left, width = 150, 130
    names = ("step k - 1", "step k", "step k + 1", "...", "step m - 1", "step m")
    for number, name in enumerate(names):
        drawing.box(left + number * width, 54, width, 32)
        drawing.text(left + number * width + width / 2, 75, name, 12, "middle")

    def lane(y: int, parts: list[tuple[float, float, str, str]]) -> None:
        for start, end, words, fill in parts:
            drawing.box(left + start * width, y - 16, (end - start) * width, 32, fill)
            drawing.text(left + (start + end) / 2 * width, y + 4, words, 11, "middle")

    lane(130, [(0, 1, "= s", SLOTS), (1, 6, "= -1: the base is read", DEVICE)])
    lane(
        190,
        [
            (0, 1, "leaver's row, read", SLOTS),
            (1, 2, "nobody reads it", REST),
            (2, 5, "new row is copied in, on a stream of its own", HOST),
            (5, 6, "newcomer's row, read", SLOTS),
        ],
    )
    lane(250, [(0, 5, "= -1: the base is read", DEVICE), (5, 6, "= s", SLOTS)])
    for number, name in ((1, "boundary k"), (2, "boundary k + 1"), (5, "boundary m")):
        x = left + number * width
        drawing.line(x, 46, x, 276, dashed=True)
        drawing.text(x, 292, name, 11, "middle", soft=True)
    drawing.text(
        20,
        318,
        "The copy waits on the GPU for the event of boundary k + 1; boundary m is the first that finds the copy done.",
        12,
        soft=True,
    )
    return drawing
