"""The callback URL in a webhook's payload."""

from typing import Any, cast


def strip_callback_url(payload: dict[str, Any]) -> dict[str, Any]:
    """Kakao's payload without the callback URL, which is a capability to post into the chat."""
    request = payload.get("userRequest")
    if not isinstance(request, dict):
        return payload
    fields = cast("dict[str, Any]", request)
    return payload | {"userRequest": {name: value for name, value in fields.items() if name != "callbackUrl"}}
