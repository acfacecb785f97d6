"""JSON that is passed on as text: clients get nothing that they cannot decode."""

import json
from typing import Any

import msgspec
import pytest

from pabal.db.stored_json import raw_json

pytestmark = pytest.mark.unit

USUAL = ["{}", '{"a": [1, 2.50, "파발"]}', '{"a": 12345678901234567890123}', "[" * 64 + "]" * 64, f"[{'[], ' * 200}1]"]
DEEP = '{"a": ' * 5000 + "1" + "}" * 5000
UNUSUAL: dict[str, tuple[str, Any]] = {
    "a number beyond a double": (f'{{"a": 1{"0" * 400}}}', {"a": 10**400}),
    "a number below a double": (f'{{"a": 0.{"0" * 400}1}}', {"a": 0.0}),
    "nested too deep": (DEEP, DEEP),
    "a text of digits": (f'{{"a": "{"1" * 400}"}}', {"a": "1" * 400}),
}


@pytest.mark.parametrize("text", USUAL)
def test_usual_json_is_unchanged(text: str) -> None:
    assert bytes(raw_json(text)) == text.encode()


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_json_can_be_decoded(name: str) -> None:
    text, expected = UNUSUAL[name]

    raw = raw_json(text)

    assert json.loads(bytes(raw)) == expected
    assert msgspec.json.decode(raw) == expected
