"""Charts, drawn on the server: SVG with classes for its colours, because the policy allows no style of its own."""

from collections.abc import Sequence

from markupsafe import Markup

from pabal.console.figures import count
from pabal.console.texts import Texts
from pabal.queue.pulse import Beat

STEP, GAP, HEIGHT = 10, 2, 100

FRAME = Markup(
    '<svg class="chart hour" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img"'
    ' aria-labelledby="chart-{lane}"><title id="chart-{lane}">{title}</title>{bars}'
    '<line class="axis" x1="0" y1="{base}" x2="{width}" y2="{base}" vector-effect="non-scaling-stroke"/></svg>'
)
BAR = Markup("<g><title>{title}</title>{parts}</g>")
PART = Markup('<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>')


def hour(t: Texts, lane: str, beats: Sequence[Beat]) -> Markup:
    """An hour of a lane: a bar a minute, what failed on top of what was done."""
    tallest = max((beat.done + failures(beat) for beat in beats), default=0)
    bars = [bar(t, beat, place, len(beats) - 1 - place, tallest) for place, beat in enumerate(beats) if tallest]
    return FRAME.format(
        lane=lane,
        title=t("chart of").format(t(f"lane {lane}")),
        width=STEP * len(beats),
        height=HEIGHT + 1,
        base=HEIGHT + 0.5,
        bars=Markup().join(bars),
    )


def bar(t: Texts, beat: Beat, place: int, ago: int, tallest: int) -> Markup:
    if not beat.done + failures(beat):
        return Markup()
    done, failed = tall(beat.done, tallest), tall(failures(beat), tallest)
    x, top = place * STEP + GAP / 2, HEIGHT - min(done + failed, HEIGHT)
    parts = [
        (kind, y, height) for kind, y, height in (("failed", top, failed), ("done", HEIGHT - done, done)) if height
    ]
    return BAR.format(
        title=t("minute told").format(ago, count(beat.done), count(failures(beat))),
        parts=Markup().join(
            PART.format(kind=kind, x=x, y=round(y, 1), width=STEP - GAP, height=round(height, 1))
            for kind, y, height in parts
        ),
    )


def told(t: Texts, beats: Sequence[Beat]) -> str:
    """The same in words, for who does not see the bars and for who wants the number."""
    done, failed = sum(beat.done for beat in beats), sum(map(failures, beats))
    if not done + failed:
        return t("hour empty")
    busiest = max(beat.done + failures(beat) for beat in beats)
    return t("hour told").format(count(done), count(failed), count(busiest))


def tall(number: int, tallest: int) -> float:
    """How high a part of a bar is: to scale, but what is there at all can be seen."""
    return max(number / tallest * HEIGHT, HEIGHT / 25) if number else 0.0


def failures(beat: Beat) -> int:
    return beat.failed + beat.dead
