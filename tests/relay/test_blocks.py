"""Images and other blocks of a message reach the bot in one form."""

from typing import Any

import pytest

from pabal.relay.webhook.blocks import MAX_BLOCKS, read_message_blocks

pytestmark = pytest.mark.unit

PHOTO = "https://dn-m.talk.example.org/talkm/oX/i_photo.jpg"
IMAGE = {"kind": "image", "url": PHOTO, "text": None}
SECURE = '{"privacyAgreement":"Y","imageQuantity":"2","secureUrls":"List(https://secure.example.org/a, https://b.example.org/c?d=1)"}'


@pytest.mark.parametrize(
    ("params", "action", "blocks"),
    [
        ({"media": {"type": "image", "url": PHOTO}}, None, [IMAGE]),
        ({"media": [{"type": "image", "url": PHOTO}, {"type": "IMAGE", "url": PHOTO}]}, None, [IMAGE, IMAGE]),
        (
            {"media": {"type": "video", "url": PHOTO, "text": "우리 집"}},
            {},
            [{**IMAGE, "kind": "video", "text": "우리 집"}],
        ),
        ({"media": {"url": PHOTO, "type": 7}}, None, [{**IMAGE, "kind": "file"}]),
        (
            None,
            {"params": {"photo": SECURE, "other": "plain"}},
            [
                {"kind": "image", "url": "https://secure.example.org/a", "text": None},
                {"kind": "image", "url": "https://b.example.org/c?d=1", "text": None},
            ],
        ),
    ],
)
def test_the_forms_of_kakao_become_one(params: Any, action: Any, blocks: list[dict[str, Any]]) -> None:
    assert read_message_blocks(params, action) == blocks


@pytest.mark.parametrize(
    ("params", "action"),
    [
        (None, None),
        ({}, {}),
        ("text", ["list"]),
        ({"media": None}, {"params": None}),
        ({"media": "text"}, {"params": [1]}),
        ({"media": {"type": "image"}}, {"params": {"a": 1, "b": None, "c": {"secureUrls": 1}}}),
        ({"media": {"type": "image", "url": "javascript:alert(1)"}}, None),
        ({"media": {"type": "image", "url": "https://x/" + "a" * 3000}}, None),
        ({"media": [None, 1, "x", {}]}, {"params": {"a": '{"secureUrls": ""}'}}),
    ],
)
def test_what_has_no_url_is_left_out(params: Any, action: Any) -> None:
    assert read_message_blocks(params, action) == []


def test_the_number_of_blocks_is_limited() -> None:
    many = {"media": [{"type": "image", "url": PHOTO}] * 1000}

    assert len(read_message_blocks(many, {"params": {"a": SECURE}})) == MAX_BLOCKS
