"""Charts, drawn on the server: SVG with classes for its colours, because the policy allows no style of its own."""

from collections.abc import Sequence

from markupsafe import Markup

from pabal.console.format import format_count
from pabal.console.i18n import Translator
from pabal.queue.throughput import ThroughputMinute

CHART_STEP, CHART_GAP, CHART_HEIGHT = 10, 2, 100

CHART_SVG = Markup(
    '<svg class="chart hour" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img"'
    ' aria-labelledby="chart-{lane}"><title id="chart-{lane}">{title}</title>{bars}'
    '<line class="axis" x1="0" y1="{base}" x2="{width}" y2="{base}" vector-effect="non-scaling-stroke"/></svg>'
)
BAR_SVG = Markup("<g><title>{title}</title>{parts}</g>")
SEGMENT_SVG = Markup('<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>')


def throughput_chart(t: Translator, lane: str, minutes: Sequence[ThroughputMinute]) -> Markup:
    """An hour of a lane: a bar a minute, what failed on top of what was done."""
    tallest = max((beat.done + count_failed(beat) for beat in minutes), default=0)
    bars = [
        throughput_bar(t, beat, place, len(minutes) - 1 - place, tallest)
        for place, beat in enumerate(minutes)
        if tallest
    ]
    return CHART_SVG.format(
        lane=lane,
        title=t("chart of").format(t(f"lane {lane}")),
        width=CHART_STEP * len(minutes),
        height=CHART_HEIGHT + 1,
        base=CHART_HEIGHT + 0.5,
        bars=Markup().join(bars),
    )


def throughput_bar(t: Translator, minute: ThroughputMinute, index: int, minutes_ago: int, max_count: int) -> Markup:
    if not minute.done + count_failed(minute):
        return Markup()
    done, failed = segment_height(minute.done, max_count), segment_height(count_failed(minute), max_count)
    x, top = index * CHART_STEP + CHART_GAP / 2, CHART_HEIGHT - min(done + failed, CHART_HEIGHT)
    parts = [
        (kind, y, height)
        for kind, y, height in (("failed", top, failed), ("done", CHART_HEIGHT - done, done))
        if height
    ]
    return BAR_SVG.format(
        title=t("minute told").format(minutes_ago, format_count(minute.done), format_count(count_failed(minute))),
        parts=Markup().join(
            SEGMENT_SVG.format(kind=kind, x=x, y=round(y, 1), width=CHART_STEP - CHART_GAP, height=round(height, 1))
            for kind, y, height in parts
        ),
    )


def describe_throughput(t: Translator, minutes: Sequence[ThroughputMinute]) -> str:
    """The same in words, for who does not see the bars and for who wants the number."""
    done, failed = sum(beat.done for beat in minutes), sum(map(count_failed, minutes))
    if not done + failed:
        return t("hour empty")
    busiest = max(beat.done + count_failed(beat) for beat in minutes)
    return t("hour told").format(format_count(done), format_count(failed), format_count(busiest))


def segment_height(number: int, max_count: int) -> float:
    """How high a part of a bar is: to scale, but what is there at all can be seen."""
    return max(number / max_count * CHART_HEIGHT, CHART_HEIGHT / 25) if number else 0.0


def count_failed(minute: ThroughputMinute) -> int:
    return minute.failed + minute.dead


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
