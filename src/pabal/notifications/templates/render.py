"""Render: a template and a payload into the words one channel shows.

Values are written into a text, never read as one: what somebody calls themselves opens no mention, link or tag.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Template as Compiled
from jinja2 import TemplateError

from pabal.core.errors import PabalError
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.templates.template import Template, TemplateText
from pabal.notifications.templates.text_sandbox import TextSandbox

FALLBACK_LOCALE = "en"
"""For a language that no template speaks."""
MAX_VALUE_LENGTH = 1000
"""Characters of one value: a long one must not crowd out the words around it."""
ELLIPSIS = "…"

INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, and those that make a line read other than it is written."""
MARKDOWN_CHARACTERS = re.compile(r"[\\`*_~|<>\[\]()#:]")
LINE_START_MARKERS = re.compile(r"^([^\S\n]*)([-+]|\d+(?=\.))", re.MULTILINE)


class Unrenderable(PabalError):
    """The template and the payload no longer fit: one of them changed since the request was made."""

    code = "unrenderable"


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Most UTF-16 units of a title and of a body; how Discord counts, and never fewer than characters."""

    title: int
    body: int


DISCORD_LIMITS = TextLimits(256, 4096)
TOAST_LIMITS = TextLimits(120, 1000)
CHANNEL_LIMITS = {
    NotificationChannel.USER_DM: DISCORD_LIMITS,
    NotificationChannel.GUILD_AUDIT_CHANNEL: DISCORD_LIMITS,
    NotificationChannel.DASHBOARD_TOAST: TOAST_LIMITS,
}


@dataclass(frozen=True, slots=True)
class RenderedText:
    """What the channel shows. For Discord the values in it are escaped; for a toast it is plain text, not HTML."""

    title: str | None
    body: str


def render_notification(
    template: Template, channel: NotificationChannel, locale: str, payload: Mapping[str, Any]
) -> RenderedText:
    """Write the notice down in the language of the locale, cut to what the channel takes."""
    if mistakes := template.payload_errors(payload):
        raise Unrenderable("; ".join(map(str, mistakes)))
    text = select_text(template, channel, locale)
    given = {name: payload[name] for name in template.variables}
    limits = CHANNEL_LIMITS[channel]
    try:
        title = None if text.title is None else " ".join(compile_text(channel, text.title).render(given).split())
        body = compile_text(channel, text.body).render(given).strip()
    except (TemplateError, TypeError, ValueError, OverflowError) as error:  # a filter that the value is not for
        raise Unrenderable(f"{template.key}: {error}") from None
    return RenderedText(title and truncate_utf16(title, limits.title), truncate_utf16(body, limits.body) or ELLIPSIS)


def select_text(template: Template, channel: NotificationChannel, locale: str) -> TemplateText:
    spoken = template.texts.get(channel)
    if not spoken:
        raise Unrenderable(f"{template.key} has no text for {channel}")
    return spoken.get(locale.partition("-")[0]) or spoken[FALLBACK_LOCALE]


def clean_value(value: Any) -> str:
    """A value as people read it, without what they cannot see."""
    text = INVISIBLE_CHARACTERS.sub("", str(value).replace("\r\n", "\n"))
    return truncate_utf16(text, MAX_VALUE_LENGTH)


def escape_for_discord(value: Any) -> str:
    """A value in which Discord finds no markdown, no mention and no link behind other words."""
    escaped = MARKDOWN_CHARACTERS.sub(r"\\\g<0>", clean_value(value)).replace("@", "@\u200b")
    return LINE_START_MARKERS.sub(lambda start: f"{start[1]}{escape_line_start(start[2])}", escaped)


def escape_line_start(marker: str) -> str:
    return f"{marker}\\" if marker.isdigit() else f"\\{marker}"


def truncate_utf16(text: str, limit: int) -> str:
    """The text, or as much of it as fits, with a sign that there was more."""
    if len(text) * 2 <= limit or utf16_length(text) <= limit:
        return text
    kept = text[: limit - 1]
    while utf16_length(kept) > limit - 1:
        kept = kept[: -max(1, (utf16_length(kept) - limit + 1) // 2)]
    return kept.rstrip("\\ \n") + ELLIPSIS  # half an escape would take hold of what follows


def utf16_length(text: str) -> int:
    return len(text) + sum(each > "\uffff" for each in text)


VALUE_FORMATTERS: dict[NotificationChannel, Callable[[Any], str]] = {
    NotificationChannel.USER_DM: escape_for_discord,
    NotificationChannel.GUILD_AUDIT_CHANNEL: escape_for_discord,
    NotificationChannel.DASHBOARD_TOAST: clean_value,
}
CHANNEL_SANDBOXES = {channel: TextSandbox(finalize) for channel, finalize in VALUE_FORMATTERS.items()}


@lru_cache(maxsize=1024)
def compile_text(channel: NotificationChannel, source: str) -> Compiled:
    return CHANNEL_SANDBOXES[channel].from_string(source)
