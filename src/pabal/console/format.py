"""Formatting of numbers, times, ids, payloads and user agents for people."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from markupsafe import Markup, escape

from pabal.core.messages import Message
from pabal.relay.reply.validate import list_skill_outputs

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86400
ID_NAME_PATTERN = re.compile(r"(?:[a-z]+:)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names that are only an id, such as the account of a session."""
MAX_UNCUT_ID_LENGTH = 18
MAX_ID_KIND_LENGTH = 16
"""How far into an id its kind may reach, as in `conversation:…`."""


def format_count(number: int) -> str:
    return f"{number:,}"


def format_age(duration: timedelta) -> Message:
    """Format an age with at most two units: `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`."""
    seconds = duration.total_seconds()
    if seconds < MINUTE_SECONDS:
        return Message("{} s", f"{seconds:.1f}".removesuffix(".0"))
    whole = int(seconds)
    if whole < HOUR_SECONDS:
        return Message("{} min", whole // MINUTE_SECONDS)
    if whole < DAY_SECONDS:
        return Message("{} h {} min", whole // HOUR_SECONDS, whole % HOUR_SECONDS // MINUTE_SECONDS)
    return Message("{} d {} h", whole // DAY_SECONDS, whole % DAY_SECONDS // HOUR_SECONDS)


def time_element(at: datetime | None) -> Markup:
    """Render a time in UTC. The page's script converts it to the local time zone."""
    if at is None:
        return Markup("")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-local-time>{} UTC</time>').format(
        utc.isoformat(), utc.replace(tzinfo=None).isoformat(" ", "seconds")
    )


def date_element(at: datetime) -> Markup:
    """Render the date of a time."""
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), at.date())


def code_element(text: object) -> Markup:
    """Render a text that must be copied exactly."""
    return Markup("<code>{}</code>").format(text)


def short_id(value: object) -> Markup:
    """Shorten an id to its beginning, or its kind, and its end. The title has all of it."""
    text = str(value)
    kind, colon, _ = text[:MAX_ID_KIND_LENGTH].partition(":")
    beginning = f"{kind}:" if colon else text[:8]
    short = text if len(text) <= MAX_UNCUT_ID_LENGTH else f"{beginning}…{text[-6:]}"
    return Markup('<code title="{}">{}</code>').format(text, short)


def display_name(name: str) -> Markup:
    """Render a name. A name that is only an id is shortened like one."""
    return short_id(name) if ID_NAME_PATTERN.fullmatch(name) else escape(name)


REDACTED_TEXT = "•••"
MAX_PAYLOAD_DEPTH = 64
"""Levels of a payload that are shown; far deeper ones would exceed Python's recursion limit."""
SECRET_KEY_PATTERN = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|(api|access)_?key|authorization|bearer|cookie|credential|private|signature"
    r"|session_?id|(^|_)(pass|pwd|pw|pin|otp|jwt|auth|dsn|cvc|cvv|ssn|rrn)($|_)|connection_?string"
    r"|(callback|webhook)_?url|card_?(no|num)|account_?no|phone|mobile|email|주민|비밀|전화|계좌|카드",
    re.IGNORECASE,
)
"""Keys whose values are hidden, rather too many than too few: `pabal event show` prints the full payload."""


MAX_PAYLOAD_VALUES = 5_000
"""Values of a payload that are shown. A page with more is too long to read, and slow to build."""
OMITTED_TEXT = "…"


def redact_payload(value: Any) -> Any:
    """Replace the values of secret keys at any depth, and everything beyond the limits of a page."""
    return PayloadRedactor().redact(value)


class PayloadRedactor:
    """Redacts one payload and counts its values."""

    def __init__(self) -> None:
        self._count = 0

    def redact(self, value: Any, depth: int = 0) -> Any:
        match value:
            case str() if not depth and value.startswith(("{", "[")):  # too deep to decode, so it is still JSON text
                return OMITTED_TEXT
            case dict() | list() | tuple() if depth >= MAX_PAYLOAD_DEPTH:
                return OMITTED_TEXT
            case dict():
                return dict(self._entries(cast("dict[object, Any]", value), depth + 1))
            case list() | tuple():
                return [*self._items(cast("list[Any]", value), depth + 1)]
            case _:
                return value

    def _entries(self, entries: dict[object, Any], depth: int) -> Iterator[tuple[object, Any]]:
        for key, entry in entries.items():
            if self._is_full():
                yield OMITTED_TEXT, OMITTED_TEXT
                return
            is_secret = entry is not None and is_secret_key(key)
            yield key, REDACTED_TEXT if is_secret else self.redact(entry, depth)

    def _items(self, items: list[Any], depth: int) -> Iterator[Any]:
        for item in items:
            if self._is_full():
                yield OMITTED_TEXT
                return
            yield self.redact(item, depth)

    def _is_full(self) -> bool:
        self._count += 1
        return self._count > MAX_PAYLOAD_VALUES


def redacted_json(value: Any) -> str:
    """Format a redacted payload as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(redact_payload(value)), indent=2).decode()


MAX_KEY_CHARS = 256
"""Characters of a key. A longer one is no name of a field; its value is hidden."""


def is_secret_key(key: object) -> bool:
    if len(str(key)) > MAX_KEY_CHARS:
        return True
    return SECRET_KEY_PATTERN.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]+", "_", str(key))) is not None


KEY_END_CHARS = 4
"""Characters of a user key that are shown at its beginning and at its end."""
MAX_SHORT_KEY = 12
"""Keys up to this length show only two characters: both ends would be most of the key."""
MAX_CHANNEL_CHARS = 24
"""Kakao's channel ids have 24 characters; longer ones are shortened to fit a list."""


def redact_user_key(conversation_key: str) -> str:
    """Shorten a conversation key so that it does not identify the user. The detail page shows all of it."""
    channel, _, user = conversation_key.partition(":")
    if len(channel) > MAX_CHANNEL_CHARS:
        channel = f"{channel[: MAX_CHANNEL_CHARS // 3]}…{channel[-MAX_CHANNEL_CHARS // 3 :]}"
    ends = f"{user[:2]}…" if len(user) <= MAX_SHORT_KEY else f"{user[:KEY_END_CHARS]}…{user[-KEY_END_CHARS:]}"
    return f"{channel}:{ends}"


MAX_RESPONSE_DEPTH = 64
"""Levels of a response that are searched; Kakao's format has six."""
TEXT_KEYS = ("title", "text", "description", "altText")


def reply_texts(response: Mapping[str, Any] | str | None) -> list[str]:
    """Return one text per output of a skill response. An output without text is named by its type.

    A response that is nested too deeply to decode is still JSON text, and has no outputs.
    """
    outputs = list_skill_outputs(dict(response)) if isinstance(response, Mapping) else []
    return ["\n".join(find_texts(output)) or f"[{', '.join(output)}]" for output in outputs]


def find_texts(value: object, depth: int = 0) -> Iterator[str]:
    if depth > MAX_RESPONSE_DEPTH:
        return
    match value:
        case dict():
            for key, entry in cast("dict[str, object]", value).items():
                if key in TEXT_KEYS and isinstance(entry, str):
                    yield entry
                else:
                    yield from find_texts(entry, depth + 1)
        case list():
            for item in cast("list[object]", value):
                yield from find_texts(item, depth + 1)
        case _:
            return


BROWSERS_BY_TOKEN = {
    "Edg": "Edge",
    "OPR": "Opera",
    "SamsungBrowser": "Samsung Internet",
    "Whale": "Whale",
    "Firefox": "Firefox",
    "FxiOS": "Firefox",
    "CriOS": "Chrome",
    "Chrome": "Chrome",
    "Safari": "Safari",
}
"""Ordered: browsers that also contain the token of another come first."""
SYSTEMS_BY_TOKEN = {
    "Windows": "Windows",
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def format_user_agent(user_agent: str) -> Markup:
    """Shorten a user agent to browser and system, such as `Chrome 156 · Linux`. Unknown ones are shown in full."""
    for product, browser in BROWSERS_BY_TOKEN.items():
        if match := re.search(rf"{product}\w*/(\d+)", user_agent):
            system = next((name for mark, name in SYSTEMS_BY_TOKEN.items() if mark in user_agent), "")
            version = re.search(r"\bVersion/(\d+)", user_agent) if product == "Safari" else match
            short = f"{browser} {(version or match)[1]}" + (f" · {system}" if system else "")
            return Markup('<span title="{}">{}</span>').format(user_agent, short)
    return escape(user_agent)
