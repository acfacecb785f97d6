"""Kakao's side of the webhook: the requests it sends."""

from itertools import count
from typing import Any

import httpx2

from support.webhook import WEBHOOK_HEADERS

CALLBACK_NUMBERS = count(1)
USE_CALLBACK = {"version": "2.0", "useCallback": True}
"""The response that announces a reply through the callback."""


def skill_payload(text: str | None, user: str = "user", **request: Any) -> dict[str, Any]:
    """A skill payload with its own callback. `request` overrides fields of `userRequest`."""
    return {
        "bot": {"id": "channel"},
        "intent": {"name": "fallback"},
        "userRequest": {
            "user": {"id": f"id-{user}", "type": "botUserKey", "properties": {"plusfriendUserKey": user}},
            "utterance": text,
            "callbackUrl": f"http://127.0.0.1:9/callback/{next(CALLBACK_NUMBERS)}",
            "lang": "ko",
        }
        | request,
        "action": {"params": {"media": {"url": "https://talk.example/i.jpg"}, "n": 1}, "clientExtra": None},
    }


async def post_webhook(web: httpx2.AsyncClient, payload: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await web.post("/kakao/webhook", json=payload, headers=WEBHOOK_HEADERS | headers)
    assert response.status_code == 200, response.text
    return response.json()


async def send_message(web: httpx2.AsyncClient, text: str | None, user: str = "user", **request: Any) -> dict[str, Any]:
    """Send a message as a user; returns the response to Kakao."""
    return await post_webhook(web, skill_payload(text, user, **request))


def text_of(response: dict[str, Any]) -> str:
    """The texts of an immediate response."""
    return "\n".join(output["simpleText"]["text"] for output in response["template"]["outputs"])
