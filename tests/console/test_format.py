"""Texts of replies and redacted user keys."""

from typing import Any

import pytest

from pabal.console.format import redact_user_key, reply_texts

CARD = {"title": "Umbrella", "description": "Keeps dry", "buttons": [{"label": "Buy"}]}


@pytest.mark.parametrize(
    ("outputs", "texts"),
    [
        ([{"simpleText": {"text": "one\ntwo"}}, {"simpleText": {"text": "three"}}], ["one\ntwo", "three"]),
        ([{"textCard": CARD}], ["Umbrella\nKeeps dry"]),
        ([{"carousel": {"type": "textCard", "items": [CARD, CARD]}}], ["Umbrella\nKeeps dry\nUmbrella\nKeeps dry"]),
        ([{"simpleImage": {"imageUrl": "https://example.org/a.png", "altText": "a cat"}}], ["a cat"]),
        ([{"simpleImage": {"imageUrl": "https://example.org/a.png"}}], ["[simpleImage]"]),
        ([{"simpleText": {"text": None}}], ["[simpleText]"]),
        (None, []),
    ],
)
def test_a_reply_is_reduced_to_its_texts(outputs: Any, texts: list[str]) -> None:
    assert reply_texts({"version": "2.0", "template": {"outputs": outputs}}) == texts


def test_a_reply_without_text_has_no_texts() -> None:
    assert reply_texts(None) == reply_texts({"version": "2.0", "data": {"text": "x"}}) == []


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("channel:x1-plusfriend-9Q4tzK", "channel:x1-p…4tzK"),
        ("channel:a:b-plusfriend:c:d", "channel:a:b-…:c:d"),
        ("channel:short-key", "channel:sh…"),
        ("channel:", "channel:…"),
        (f"{'0123456789abcdef' * 2}:short-key", "01234567…89abcdef:sh…"),
        (f"{'0123456789ab' * 2}:short-key", "0123456789ab0123456789ab:sh…"),
    ],
)
def test_a_user_key_is_redacted(key: str, shown: str) -> None:
    assert redact_user_key(key) == shown
