"""Sparks: a row of small bars, to be seen at a glance beside a number."""

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, GAP, HEIGHT = 4, 1, 24
LEAST = 3
"""What is there at all is seen, however much more there is beside it."""


def spark(values: Sequence[int], says: str) -> Markup:
    """One bar for each value, as high as the highest allows. `says` is the same for whoever cannot see it."""
    most = max(values, default=0)
    bars = Markup("").join(
        bar(place, max(LEAST, round(HEIGHT * value / most)) if value else 1, "failed" if value else "axis")
        for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="chart spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"><title>{}</title>{}</svg>'
    ).format(max(1, len(values) * (WIDTH + GAP) - GAP), HEIGHT, says, bars)


def bar(place: int, high: int, kind: str) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        kind, place * (WIDTH + GAP), HEIGHT - high, WIDTH, high
    )
