"""A bar chart as SVG: no script, no font of its own, readable on white and on black."""

from collections.abc import Sequence
from html import escape

WIDTH = 720
NAMES = 190
RIGHT = 60
TOP = 40
ROW = 44
BAR = 14

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .faint { fill: #59636e; }
  .line { stroke: #d1d9e0; }
  .first { fill: #8c959f; }
  .ours .first { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .faint { fill: #9198a1; }
    .line { stroke: #3d444d; }
    .first { fill: #8b949e; }
    .ours .first { fill: #4493f8; }
  }
"""

Bar = tuple[str, str, float, bool]
"""A name, its description, its value, and whether it is ours."""


def draw_chart(title: str, bars: Sequence[Bar]) -> str:
    height = TOP + ROW * len(bars) + 8
    scale = (WIDTH - NAMES - RIGHT) / max(value for _, _, value, _ in bars)
    place = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {place} role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="0" y="18">{escape(title)}</text>',
        f'<line class="line" x1="{NAMES - 4}" y1="{TOP - 8}" x2="{NAMES - 4}" y2="{height - 8}"/>',
        *(line for place, bar in enumerate(bars) for line in draw_bar(bar, TOP + ROW * place, scale)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_bar(bar: Bar, top: int, scale: float) -> list[str]:
    name, description, value, ours = bar
    width = max(1.0, value * scale)
    return [
        f'<g class="{"ours" if ours else "peer"}">',
        f'<text x="{NAMES - 12}" y="{top + 12}" text-anchor="end">{escape(name)}</text>',
        f'<text class="faint" x="{NAMES - 12}" y="{top + 27}" text-anchor="end">{escape(description)}</text>',
        f'<rect class="first" x="{NAMES}" y="{top + 6}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text class="faint" x="{NAMES + width + 6:.1f}" y="{top + 17}">{value:,.0f}</text>',
        "</g>",
    ]
