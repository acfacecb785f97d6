"""Numbers, times and ids as a person reads them."""

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
"""What has no name of its own: an account a session made, whoever came with a token, an event among several."""
MAX_ID_KIND_LENGTH = 16
"""So far into an id it may say what it is of, as `conversation:` does."""


def format_count(number: int) -> str:
    return f"{number:,}"


def format_age(duration: timedelta) -> Message:
    """Write `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`: two places, no more."""
    seconds = duration.total_seconds()
    if seconds < MINUTE_SECONDS:
        return Message("{} s", f"{seconds:.1f}")
    whole = int(seconds)
    if whole < HOUR_SECONDS:
        return Message("{} min", whole // MINUTE_SECONDS)
    if whole < DAY_SECONDS:
        return Message("{} h {} min", whole // HOUR_SECONDS, whole % HOUR_SECONDS // MINUTE_SECONDS)
    return Message("{} d {} h", whole // DAY_SECONDS, whole % DAY_SECONDS // HOUR_SECONDS)


def time_element(at: datetime | None) -> Markup:
    """A time, to the second, in UTC; the page's script turns it to the clock of whoever looks."""
    if at is None:
        return Markup("")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-at>{} UTC</time>').format(
        utc.isoformat(), utc.replace(tzinfo=None).isoformat(" ", "seconds")
    )


def short_id(name: object) -> Markup:
    """An id in the room a list has: its beginning and its end, or what it is and its end; all of it is in its title."""
    whole = str(name)
    kind, colon, _ = whole[:MAX_ID_KIND_LENGTH].partition(":")
    begins = f"{kind}:" if colon else whole[:8]
    cut = whole if len(whole) <= 18 else f"{begins}…{whole[-6:]}"  # noqa: PLR2004 both parts and a little
    return Markup('<code title="{}">{}</code>').format(whole, cut)


def display_name(name: str) -> Markup:
    """Whoever it is, in a list: one that is called after an id is cut like one."""
    return short_id(name) if ID_NAME_PATTERN.fullmatch(name) else escape(name)


REDACTED_TEXT = "•••"
MAX_PAYLOAD_DEPTH = 64
"""Levels of a payload that are shown: more is no reading, and Python itself gives up at some."""
TOO_DEEP_TEXT = "…"
SECRET_KEY_PATTERN = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|(api|access)_?key|authorization|bearer|cookie|credential|private|signature"
    r"|session_?id|(^|_)(pass|pwd|pw|pin|otp|jwt|auth|dsn|cvc|cvv|ssn|rrn)($|_)|connection_?string"
    r"|(callback|webhook)_?url|card_?(no|num)|account_?no|phone|mobile|email|주민|비밀|전화|계좌|카드",
    re.IGNORECASE,
)
"""Keys whose values are not shown. It errs on the side of hiding: whoever must read one has `pabal event show`."""


def redact_payload(value: Any, depth: int = 0) -> Any:
    """The same, with the values of such keys covered, however deep they are; what nobody would read is left out."""
    match value:
        case str() if not depth and value.startswith(("{", "[")):  # so deep that it came as it was written
            return TOO_DEEP_TEXT
        case dict() | list() | tuple() if depth >= MAX_PAYLOAD_DEPTH:
            return TOO_DEEP_TEXT
        case dict():
            facts = cast("dict[object, Any]", value)
            return {
                key: REDACTED_TEXT if is_secret_key(key) and held is not None else redact_payload(held, depth + 1)
                for key, held in facts.items()
            }
        case list() | tuple():
            return [redact_payload(each, depth + 1) for each in cast("list[Any]", value)]
        case _:
            return value


def redacted_json(value: Any) -> str:
    """A payload as a page shows it: covered, indented, in the writing of its author."""
    return msgspec.json.format(msgspec.json.encode(redact_payload(value)), indent=2).decode()


def is_secret_key(key: object) -> bool:
    return SECRET_KEY_PATTERN.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]+", "_", str(key))) is not None


KEY_END_CHARS = 4
"""Characters of a user's key that are shown, at its beginning and at its end."""
MAX_SHORT_KEY = 12
"""Up to here the ends would be most of it."""
MAX_CHANNEL_CHARS = 24
"""As long as Kakao's are. What is longer somebody made up, and a list has no room for it."""


def redact_user_key(conversation_key: str) -> str:
    """A conversation's key with the middle of the user's part left out. All of it is in the detail."""
    channel, _, user = conversation_key.partition(":")
    if len(channel) > MAX_CHANNEL_CHARS:
        channel = f"{channel[: MAX_CHANNEL_CHARS // 3]}…{channel[-MAX_CHANNEL_CHARS // 3 :]}"
    ends = f"{user[:2]}…" if len(user) <= MAX_SHORT_KEY else f"{user[:KEY_END_CHARS]}…{user[-KEY_END_CHARS:]}"
    return f"{channel}:{ends}"


MAX_RESPONSE_DEPTH = 64
"""Levels of an answer that are read: Kakao has no more than six."""
TEXT_KEYS = ("title", "text", "description", "altText")


def reply_texts(response: Mapping[str, Any] | str | None) -> list[str]:
    """One text for each thing an answer shows; one without any words is called what it is.

    An answer that is nested too deeply to be read at all comes as it was written, and has none.
    """
    shown = list_skill_outputs(dict(response)) if isinstance(response, Mapping) else []
    return ["\n".join(find_texts(output)) or f"[{', '.join(output)}]" for output in shown]


def find_texts(value: object, depth: int = 0) -> Iterator[str]:
    if depth > MAX_RESPONSE_DEPTH:
        return
    match value:
        case dict():
            for key, held in cast("dict[str, object]", value).items():
                if key in TEXT_KEYS and isinstance(held, str):
                    yield held
                else:
                    yield from find_texts(held, depth + 1)
        case list():
            for each in cast("list[object]", value):
                yield from find_texts(each, depth + 1)
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
"""Those first that call themselves by another's name as well."""
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
    """A browser and its system, `Chrome 156 · Linux`; all it said is in its title. What is none is shown as it is."""
    for name, browser in BROWSERS_BY_TOKEN.items():
        if found := re.search(rf"{name}\w*/(\d+)", user_agent):
            system = next((each for sign, each in SYSTEMS_BY_TOKEN.items() if sign in user_agent), "")
            version = re.search(r"\bVersion/(\d+)", user_agent) if name == "Safari" else found
            short = f"{browser} {(version or found)[1]}" + (f" · {system}" if system else "")
            return Markup('<span title="{}">{}</span>').format(user_agent, short)
    return escape(user_agent)
