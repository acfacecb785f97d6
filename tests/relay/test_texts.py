"""Chat texts: equal in both languages, and short."""

from dataclasses import asdict
from string import Formatter

import pytest

from pabal.relay.webhook.skill_response import ENGLISH_TEXTS, KOREAN_TEXTS, chat_texts

KEYS = [*asdict(KOREAN_TEXTS)]


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_texts_are_found_by_language() -> None:
    assert (chat_texts("ko"), chat_texts("en")) == (KOREAN_TEXTS, ENGLISH_TEXTS)


@pytest.mark.parametrize("key", KEYS)
def test_both_languages_use_the_same_placeholders(key: str) -> None:
    korean, english = getattr(KOREAN_TEXTS, key), getattr(ENGLISH_TEXTS, key)

    assert placeholders(korean) == placeholders(english)
    assert 0 < len(korean) <= 200
    assert 0 < len(english) <= 400
    assert any("가" <= character <= "힣" for character in korean)
    assert english.replace("“", "").replace("”", "").isascii()


def test_help_says_that_the_service_is_not_official() -> None:
    assert "공식 서비스가 아니에요" in KOREAN_TEXTS.help
    assert "not an official Kakao service" in ENGLISH_TEXTS.help


def test_a_blocked_user_gets_no_reason() -> None:
    for spoken in (KOREAN_TEXTS, ENGLISH_TEXTS):
        assert not any(word in spoken.blocked.lower() for word in ("block", "차단", "owner", "소유자", "운영자"))
