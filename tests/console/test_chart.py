"""An hour as sixty bars: to scale, in words too, and nothing the policy forbids."""

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
    """An hour that ends with these minutes; nothing happened before."""
    beats = [*[(0, 0, 0)] * (60 - len(minutes)), *minutes]
    return [ThroughputMinute("events", NOON + place * MINUTE, *each, MINUTE) for place, each in enumerate(beats)]


def drawn(beats: list[ThroughputMinute]) -> list[tuple[str, float, float, float]]:
    """Each part of each bar: what it stands for, where from the left, its top, its height."""
    svg = ET.fromstring(str(throughput_chart(ENGLISH, "events", beats)))
    parts = [part.attrib for part in svg.iter("rect")]
    return [(part["class"], float(part["x"]), float(part["y"]), float(part["height"])) for part in parts]


def test_bars_are_to_scale_and_what_failed_stands_on_what_was_done() -> None:
    assert drawn(hour((30, 10, 0), (20, 0, 0))) == [
        ("failed", 581, 0, 25),
        ("done", 581, 25, 75),
        ("done", 591, 50, 50),
    ]


def test_one_death_in_a_flood_can_be_seen() -> None:
    [(kind, _, top, height), done] = drawn(hour((100_000, 0, 1)))

    assert (kind, top, height) == ("failed", 0, 4)
    assert done == ("done", 591, 0, 100)


def test_an_hour_without_anything_has_an_axis_and_says_so() -> None:
    assert drawn(hour()) == []
    assert "axis" in throughput_chart(ENGLISH, "events", hour())
    assert describe_throughput(ENGLISH, hour()) == "Nothing was processed in the last hour."


@pytest.mark.parametrize(
    ("t", "title", "words", "minute"),
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
def test_it_is_told_in_words_too(t: Translator, title: str, words: str, minute: str) -> None:
    beats = hour((1200, 2, 1), (0, 0, 0), (0, 0, 0))
    titles = re.findall(r"<title[^>]*>([^<]*)</title>", throughput_chart(t, "events", beats))

    assert titles == [title, minute]
    assert describe_throughput(t, beats) == words


def test_it_needs_no_style_of_its_own() -> None:
    svg = str(throughput_chart(ENGLISH, "events", hour((3, 1, 1))))

    assert "style" not in svg
    assert 'role="img" aria-labelledby="chart-events"' in svg
