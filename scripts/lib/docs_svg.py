"""The few shapes that the figures of the documents are made of, as SVG text."""

from __future__ import annotations

from html import escape

FONT = 'font-family="Helvetica, Arial, sans-serif"'
INK, SOFT, PAPER = "#1f2328", "#59636e", "#ffffff"
DEVICE, HOST, SLOTS, REST = "#cfe3f7", "#fbe0c3", "#d3ecd3", "#ececec"


class Drawing:
    """A picture of some width and height; shapes are added in the order in which they are painted."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self._shapes: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str = PAPER, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{INK}"{dash}/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 13,
        anchor: str = "start",
        soft: bool = False,
        bold: bool = False,
    ) -> None:
        style = f'font-size="{size}" fill="{SOFT if soft else INK}" text-anchor="{anchor}"'
        weight = ' font-weight="bold"' if bold else ""
        self._add(f'<text x="{x:g}" y="{y:g}" {FONT} {style}{weight}>{escape(words)}</text>')

    def lines(
        self, x: float, y: float, words: list[str], size: int = 12, anchor: str = "start", soft: bool = False
    ) -> None:
        for number, line in enumerate(words):
            self.text(x, y + number * (size + 4), line, size, anchor, soft)

    def line(self, x1: float, y1: float, x2: float, y2: float, dashed: bool = False, arrow: bool = False) -> None:
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        head = ' marker-end="url(#head)"' if arrow else ""
        self._add(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}"{dash}{head}/>')

    def svg(self) -> str:
        """The whole file."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
        )
        parts = [
            "<!-- Drawn by scripts/lib/docs_figures.py; do not edit. -->",
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            f"<title>{escape(self.title)}</title>",
            f"<defs>{head}</defs>",
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>',
            *self._shapes,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _add(self, shape: str) -> None:
        self._shapes.append(shape)
