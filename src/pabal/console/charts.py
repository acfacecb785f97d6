"""Charts as inline SVG. Colours come from CSS classes, because the content security policy forbids inline styles."""

from collections.abc import Sequence

from markupsafe import Markup

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
    """Draw an hour of a lane: one bar per minute, failures stacked on top of successes."""
    max_count = max((minute.done + count_failed(minute) for minute in minutes), default=0)
    bars = [
        throughput_bar(t, minute, index, len(minutes) - 1 - index, max_count)
        for index, minute in enumerate(minutes)
        if max_count
    ]
    return CHART_SVG.format(
        lane=lane,
        title=t("overview.chart.title", lane=t.variant("common.lane", lane)),
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
        title=t("overview.chart.minute", minutes=minutes_ago, done=minute.done, failed=count_failed(minute)),
        parts=Markup().join(
            SEGMENT_SVG.format(kind=kind, x=x, y=round(y, 1), width=CHART_STEP - CHART_GAP, height=round(height, 1))
            for kind, y, height in parts
        ),
    )


def describe_throughput(t: Translator, minutes: Sequence[ThroughputMinute]) -> str:
    """Summarize the chart in words."""
    done, failed = sum(minute.done for minute in minutes), sum(map(count_failed, minutes))
    if not done + failed:
        return t("overview.chart.empty")
    busiest = max(minute.done + count_failed(minute) for minute in minutes)
    return t("overview.chart.summary", done=done, failed=failed, busiest=busiest)


def segment_height(number: int, max_count: int) -> float:
    """Scale a count to the height of the chart. Anything above zero stays visible."""
    return max(number / max_count * CHART_HEIGHT, CHART_HEIGHT / 25) if number else 0.0


def count_failed(minute: ThroughputMinute) -> int:
    return minute.failed + minute.dead


SPARKLINE_BAR_WIDTH, SPARKLINE_GAP, SPARKLINE_HEIGHT = 4, 1, 24
MIN_SPARKLINE_HEIGHT = 3
"""Keeps small values visible beside large ones."""


def sparkline(values: Sequence[int], description: str) -> Markup:
    """Draw one bar per value, scaled to the largest. `description` is the text alternative."""
    max_value = max(values, default=0)
    bars = Markup("").join(
        sparkline_bar(
            index,
            max(MIN_SPARKLINE_HEIGHT, round(SPARKLINE_HEIGHT * value / max_value)) if value else 1,
            "failed" if value else "axis",
        )
        for index, value in enumerate(values)
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
