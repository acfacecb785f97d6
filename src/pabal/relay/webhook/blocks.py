"""Images and other blocks of a Kakao message in one form: kind, URL and text.

Kakao sends them in several forms. What is not recognised is left out here; the bot still gets the payload unchanged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

MessageBlock = dict[str, str | None]
"""`kind`: image, video, audio, file or another word of Kakao's. `url`: where it is. `text`: its caption, or None."""
MAX_BLOCKS = 20
MAX_BLOCK_URL_LENGTH = 2048
MAX_BLOCK_TEXT_LENGTH = 1000
MAX_SCANNED_LENGTH = 20_000
BLOCK_KIND = re.compile(r"[a-z][a-z_]{0,31}")
MEDIA_URL = re.compile(r"https?://[^\s\"'<>\\]+")
LISTED_URL = re.compile(r"https?://[^\s\"'<>,()\\]+")
SECURE_IMAGES = "secureUrls"
"""The plugin for secure images has a text such as `{"secureUrls": "List(https://…, https://…)", …}`."""


def read_message_blocks(params: Any, action: Any) -> list[MessageBlock]:
    """Return the blocks of a message: `userRequest.params.media`, and the secure images in `action.params`."""
    if not params and not action:
        return []
    return [*islice(iterate_blocks(as_mapping(params), as_mapping(as_mapping(action).get("params"))), MAX_BLOCKS)]


def iterate_blocks(request: Mapping[str, Any], action: Mapping[str, Any]) -> Iterator[MessageBlock]:
    media = request.get("media")
    for item in cast("Sequence[Any]", media) if isinstance(media, list) else [media]:
        if block := media_block(as_mapping(item)):
            yield block
    for value in islice(action.values(), MAX_BLOCKS):
        if isinstance(value, str) and SECURE_IMAGES in value[:MAX_SCANNED_LENGTH]:
            for url in LISTED_URL.findall(value[:MAX_SCANNED_LENGTH].partition(SECURE_IMAGES)[2]):
                yield {"kind": "image", "url": url[:MAX_BLOCK_URL_LENGTH], "text": None}


def media_block(media: Mapping[str, Any]) -> MessageBlock | None:
    """The block of a media object; None if it has no URL."""
    url, kind = media.get("url"), media.get("type")
    if not isinstance(url, str) or len(url) > MAX_BLOCK_URL_LENGTH or not MEDIA_URL.fullmatch(url):
        return None
    text = media.get("text") or media.get("altText")
    return {
        "kind": kind.lower() if isinstance(kind, str) and BLOCK_KIND.fullmatch(kind[:40].lower()) else "file",
        "url": url,
        "text": text[:MAX_BLOCK_TEXT_LENGTH] if isinstance(text, str) else None,
    }


def as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
