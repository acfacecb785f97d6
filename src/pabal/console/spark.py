"""Sparks: a row of small bars, to be seen at a glance beside a number."""

from collections.abc import Sequence

from markupsafe import Markup

SPARKLINE_BAR_WIDTH, SPARKLINE_GAP, SPARKLINE_HEIGHT = 4, 1, 24
MIN_SPARKLINE_HEIGHT = 3
"""What is there at all is seen, however much more there is beside it."""


def sparkline(values: Sequence[int], description: str) -> Markup:
    """One bar for each value, as high as the highest allows. `says` is the same for whoever cannot see it."""
    most = max(values, default=0)
    bars = Markup("").join(
        sparkline_bar(
            place,
            max(MIN_SPARKLINE_HEIGHT, round(SPARKLINE_HEIGHT * value / most)) if value else 1,
            "failed" if value else "axis",
        )
        for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="chart spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"><title>{}</title>{}</svg>'
    ).format(
        max(1, len(values) * (SPARKLINE_BAR_WIDTH + SPARKLINE_GAP) - SPARKLINE_GAP), SPARKLINE_HEIGHT, description, bars
    )


def sparkline_bar(index: int, height: int, kind: str) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        kind, index * (SPARKLINE_BAR_WIDTH + SPARKLINE_GAP), SPARKLINE_HEIGHT - height, SPARKLINE_BAR_WIDTH, height
    )
