"""The throughput chart: sixty bars to scale, a text alternative, and no inline styles."""

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from pabal.console.charts import describe_throughput, throughput_chart
from pabal.console.i18n import Translator
from pabal.queue.throughput import ThroughputMinute

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENGLISH, KOREAN = Translator("en"), Translator("ko")


def hour(*minutes: tuple[int, int, int]) -> list[ThroughputMinute]:
    """Build an hour that ends with these minutes; the others are empty."""
    minutes_of_hour = [*[(0, 0, 0)] * (60 - len(minutes)), *minutes]
    return [
        ThroughputMinute("events", NOON + place * MINUTE, *beat, MINUTE) for place, beat in enumerate(minutes_of_hour)
    ]


def segments(minutes_of_hour: list[ThroughputMinute]) -> list[tuple[str, float, float, float]]:
    """Return the class, x, y and height of every bar segment."""
    svg = ET.fromstring(str(throughput_chart(ENGLISH, "events", minutes_of_hour)))
    parts = [part.attrib for part in svg.iter("rect")]
    return [(part["class"], float(part["x"]), float(part["y"]), float(part["height"])) for part in parts]


def test_bars_are_to_scale_with_failures_stacked_on_successes() -> None:
    assert segments(hour((30, 10, 0), (20, 0, 0))) == [
        ("failed", 581, 0, 25),
        ("done", 581, 25, 75),
        ("done", 591, 50, 50),
    ]


def test_a_single_failure_among_many_successes_is_visible() -> None:
    [(kind, _, top, height), done] = segments(hour((100_000, 0, 1)))

    assert (kind, top, height) == ("failed", 0, 4)
    assert done == ("done", 591, 0, 100)


def test_an_empty_hour_has_an_axis_and_a_text() -> None:
    assert segments(hour()) == []
    assert "axis" in throughput_chart(ENGLISH, "events", hour())
    assert describe_throughput(ENGLISH, hour()) == "Nothing was processed in the last hour."


@pytest.mark.parametrize(
    ("t", "title", "text", "minute"),
    [
        (
            ENGLISH,
            "Events: last hour, per minute",
            "Last hour: 1,200 done, 3 failed, peak 1,203 / min",
            "2 min ago: 1,200 done, 3 failed",
        ),
        (
            KOREAN,
            "이벤트: 지난 1시간, 분 단위",
            "지난 1시간: 완료 1,200, 실패 3 · 분당 최대 1,203",
            "2분 전: 완료 1,200, 실패 3",
        ),
    ],
    ids=["english", "korean"],
)
def test_the_chart_has_a_text_alternative(t: Translator, title: str, text: str, minute: str) -> None:
    minutes_of_hour = hour((1200, 2, 1), (0, 0, 0), (0, 0, 0))
    titles = re.findall(r"<title[^>]*>([^<]*)</title>", throughput_chart(t, "events", minutes_of_hour))

    assert titles == [title, minute]
    assert describe_throughput(t, minutes_of_hour) == text


def test_the_chart_has_no_inline_styles() -> None:
    svg = str(throughput_chart(ENGLISH, "events", hour((3, 1, 1))))

    assert "style" not in svg
    assert 'role="img" aria-labelledby="chart-events"' in svg
