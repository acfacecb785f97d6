import json
from typing import Any

import pytest

from pabal.console.mask import DEEPER, HIDDEN, covered, is_secret, masked
from pabal.console.speech import spoken


@pytest.mark.parametrize(
    "key",
    [
        *("password", "passwd", "pass", "pwd", "pw", "passcode", "PIN", "pin-code", "otp", "cvc", "rrn", "dsn", "jwt"),
        *("secret", "client_secret", "access_token", "refreshToken", "bearer", "auth", "authorization", "signature"),
        *(
            "api_key",
            "apiKey",
            "api-key",
            "x-api-key",
            "access_key",
            "accessKeyId",
            "session_id",
            "cookie",
            "private_key",
        ),
        *("callbackUrl", "webhook_url", "connection_string", "card_no", "card-number", "account_no"),
        *("phone", "mobile", "email", "주민등록번호", "비밀번호", "전화번호", "계좌", "카드 번호"),
    ],
)
def test_what_sounds_secret_is_covered(key: str) -> None:
    assert covered({key: "open sesame", "deeper": [{key: 7}]}) == {key: HIDDEN, "deeper": [{key: HIDDEN}]}


@pytest.mark.parametrize("key", ["order", "amount", "opinion", "author", "passenger", "shipping", "compass", "spinner"])
def test_what_only_looks_like_it_is_shown(key: str) -> None:
    assert not is_secret(key)


def test_nothing_is_covered_that_is_not_there() -> None:
    assert covered({"token": None, "items": ()}) == {"token": None, "items": []}


def nested(levels: int, leaf: Any) -> Any:
    value = leaf
    for level in range(levels):
        value = {"in": value} if level % 2 else [value]
    return value


def test_however_deep_a_payload_is_its_page_can_be_shown() -> None:
    shown = masked({"top": 1, "deep": nested(900, "bottom")})

    assert '"top": 1' in shown
    assert DEEPER in json.dumps(json.loads(shown), ensure_ascii=False)
    assert "bottom" not in shown
    assert "bottom" in masked(nested(60, "bottom"))


def test_however_deep_an_answer_is_it_can_be_shown() -> None:
    outputs = [{"simpleText": {"text": "hello"}}, {"deep": nested(900, {"text": "never"})}]

    assert spoken({"version": "2.0", "template": {"outputs": outputs}}) == ["hello", "[deep]"]
