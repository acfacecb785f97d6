"""Short ids and the ids they match."""

from uuid import UUID

import pytest

from pabal.core.short_id import parse_id_pattern

ROW = UUID("01a1e213-77cd-735e-833f-ffb381ea569f")


@pytest.mark.parametrize(
    "text", [str(ROW), ROW.hex, "01a1e213…ea569f", "01A1E213...EA569F", "01a1e213", "01a1e213-77cd"]
)
def test_a_pattern_contains_its_own_id(text: str) -> None:
    pattern = parse_id_pattern(text)

    assert pattern
    assert pattern.low <= ROW <= pattern.high
    assert str(ROW).endswith(pattern.suffix)


def test_a_complete_id_is_a_range_of_one() -> None:
    pattern = parse_id_pattern(str(ROW))

    assert pattern
    assert (pattern.low, pattern.high, pattern.suffix) == (ROW, ROW, "")


@pytest.mark.parametrize("text", ["", "01a1e2", "order-77", "01a1e213…ea56", "01a1e2…ea569f", "01a1e213…zzzzzz"])
def test_other_text_is_not_a_pattern(text: str) -> None:
    assert parse_id_pattern(text) is None
