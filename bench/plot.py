"""A bar chart as SVG: no script, no font of its own, readable on white and on black."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
NAMES = 190
RIGHT = 60
TOP = 64
ROW = 44
BAR = 14

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .faint { fill: #59636e; }
  .line { stroke: #d1d9e0; }
  .first { fill: #8c959f; } .second { fill: #c8ced4; }
  .ours .first { fill: #0969da; } .ours .second { fill: #80ccff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .faint { fill: #9198a1; }
    .line { stroke: #3d444d; }
    .first { fill: #8b949e; } .second { fill: #545d68; }
    .ours .first { fill: #4493f8; } .ours .second { fill: #1f5fa8; }
  }
"""

Row = tuple[str, str, tuple[float, float], bool]
"""A name, its description, its two values, and whether it is ours."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Two bars per contestant."""

    title: str
    legend: tuple[str, str]
    rows: Sequence[Row]


def draw_chart(bars: Bars) -> str:
    height = TOP + ROW * len(bars.rows) + 8
    longest = max(max(values) for _, _, values, _ in bars.rows)
    scale = (WIDTH - NAMES - RIGHT) / longest
    place = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {place} role="img" aria-label="{escape(bars.title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="0" y="18">{escape(bars.title)}</text>',
        *legend(bars.legend),
        f'<line class="line" x1="{NAMES - 4}" y1="{TOP - 8}" x2="{NAMES - 4}" y2="{height - 8}"/>',
        *(line for place, row in enumerate(bars.rows) for line in one(row, TOP + ROW * place, scale)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def legend(words: tuple[str, str]) -> list[str]:
    first, second = words
    return [
        '<g class="ours">',
        '<rect class="first" x="0" y="30" width="12" height="12" rx="2"/>',
        f'<text x="18" y="40">{escape(first)}</text>',
        '<rect class="second" x="140" y="30" width="12" height="12" rx="2"/>',
        f'<text x="158" y="40">{escape(second)}</text>',
        "</g>",
    ]


def one(row: Row, top: int, scale: float) -> list[str]:
    name, says, values, ours = row
    lines = [
        f'<g class="{"ours" if ours else "theirs"}">',
        f'<text x="{NAMES - 12}" y="{top + 12}" text-anchor="end">{escape(name)}</text>',
        f'<text class="faint" x="{NAMES - 12}" y="{top + 27}" text-anchor="end">{escape(says)}</text>',
    ]
    for kind, value, above in zip(("first", "second"), values, (0, BAR + 2), strict=True):
        width = max(1.0, value * scale)
        lines += [
            f'<rect class="{kind}" x="{NAMES}" y="{top + above}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            f'<text class="faint" x="{NAMES + width + 6:.1f}" y="{top + above + 11}">{value:,.0f}</text>',
        ]
    return [*lines, "</g>"]
