import re

from pabal.console.charts import SPARKLINE_HEIGHT, sparkline
from support.operator import HOSTILE


def bar_heights(values: list[int]) -> list[tuple[str, int]]:
    drawn = sparkline(values, "so many")
    return [(kind, int(high)) for kind, high in re.findall(r'<rect class="(\w+)".*?height="(\d+)"/>', drawn)]


def test_the_highest_bar_fills_the_height_and_small_values_are_visible() -> None:
    assert bar_heights([0, 1, 1000]) == [("axis", 1), ("failed", 3), ("failed", SPARKLINE_HEIGHT)]


def test_no_values_draw_a_flat_line() -> None:
    assert bar_heights([0] * 24) == [("axis", 1)] * 24
    assert "<title>so many</title>" in sparkline([], "so many")


def test_no_bar_exceeds_the_image() -> None:
    drawn = sparkline([*range(24)], "so many")
    assert re.search(r'viewBox="0 0 119 24"', drawn)
    for x, y, width, high in re.findall(r'x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawn):
        assert int(x) + int(width) <= 119
        assert int(y) + int(high) == SPARKLINE_HEIGHT


def test_the_label_is_escaped() -> None:
    assert "<script" not in sparkline([1], HOSTILE)
