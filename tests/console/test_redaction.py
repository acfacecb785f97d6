import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pabal.console.format import (
    OMITTED_TEXT,
    REDACTED_TEXT,
    SECRET_KEY_PATTERN,
    is_secret_key,
    redact_payload,
    redacted_json,
    reply_texts,
)

KEYS = (
    *(
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "pass",
        "pwd",
        "pw",
        "PIN",
        "pin-code",
        "userPin",
        "otp",
        "cvc",
        "cvv",
    ),
    *("ssn", "rrn", "dsn", "jwt", "auth", "secret", "client_secret", "access_token", "refreshToken", "bearer"),
    *("authorization", "signature", "credentials", "api_key", "apiKey", "api-key", "x-api-key", "access.key"),
    *("accessKeyId", "session_id", "sessionid", "cookie", "private_key", "callbackUrl", "webhook_url", "webhookurl"),
    *("connection_string", "connectionString", "card_no", "card-number", "cardNo", "account_no", "phone", "mobile"),
    *("email", "주민등록번호", "비밀번호", "전화번호", "계좌", "카드 번호"),
)


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_name_secrets_are_redacted(key: str) -> None:
    assert redact_payload({key: "open sesame", "deeper": [{key: 7}]}) == {
        key: REDACTED_TEXT,
        "deeper": [{key: REDACTED_TEXT}],
    }


def without_one_word() -> Iterator[tuple[str, str]]:
    """Yield the redaction rules once per word, without that word."""
    for match in re.finditer(r"(?<=[(|])\^?[a-z가-힣]+(?:_\?)?(?:[a-z]+)?(?=[|)]|$)|^pass", SECRET_KEY_PATTERN.pattern):
        yield (
            match[0],
            SECRET_KEY_PATTERN.pattern[: match.start()] + "never" + SECRET_KEY_PATTERN.pattern[match.end() :],
        )


def test_every_word_of_the_redaction_rules_matches_a_sample_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of the words, a sample key is shown."""
    rules = [*without_one_word()]
    for word, pattern in rules:
        monkeypatch.setattr("pabal.console.format.SECRET_KEY_PATTERN", re.compile(pattern, re.IGNORECASE))
        assert not all(map(is_secret_key, KEYS)), word
    assert len(rules) > 40


@pytest.mark.parametrize("key", ["order", "amount", "opinion", "author", "passenger", "shipping", "compass", "spinner"])
def test_keys_that_only_resemble_secrets_are_shown(key: str) -> None:
    assert not is_secret_key(key)


def test_an_empty_value_is_not_redacted() -> None:
    assert redact_payload({"token": None, "items": ()}) == {"token": None, "items": []}


def nested(levels: int, leaf: Any) -> Any:
    value = leaf
    for level in range(levels):
        value = {"in": value} if level % 2 else [value]
    return value


def test_a_deeply_nested_payload_can_be_shown() -> None:
    shown = redacted_json({"top": 1, "deep": nested(900, "bottom")})

    assert '"top": 1' in shown
    assert OMITTED_TEXT in json.dumps(json.loads(shown), ensure_ascii=False)
    assert "bottom" not in shown
    assert "bottom" in redacted_json(nested(60, "bottom"))


def test_a_payload_too_deep_to_redact_is_not_shown() -> None:
    assert redacted_json('{"password": "open sesame"}') == redacted_json("[1]") == f'"{OMITTED_TEXT}"'
    assert redacted_json("a text") == '"a text"'


def test_a_deeply_nested_reply_can_be_shown() -> None:
    outputs = [{"simpleText": {"text": "hello"}}, {"deep": nested(900, {"text": "never"})}]

    assert reply_texts({"version": "2.0", "template": {"outputs": outputs}}) == ["hello", "[deep]"]
    assert reply_texts('{"too": "deep"}') == []
