"""Render a template and a payload into the text that a channel shows.

Values are inserted as plain text: a name cannot open a mention, a link or a tag.
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
"""For languages without templates."""
MAX_VALUE_LENGTH = 1000
"""The length limit of one value, so that a long one does not push out the text around it."""
MAX_CLEANED_LENGTH = 4 * MAX_VALUE_LENGTH
"""The part of a value that is looked at: a value may have 64 KB, and a text may use it many times."""
ELLIPSIS = "…"

INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, and characters that change the direction of text."""
MARKDOWN_CHARACTERS = re.compile(r"[\\`*_~|<>\[\]()#:]")
LINE_START_MARKERS = re.compile(r"^([^\S\n]*)([-+]|\d+(?=\.))", re.MULTILINE)


class Unrenderable(PabalError):
    """Template and payload do not match: one of them changed after the request."""

    code = "unrenderable"


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The limits of title and body in UTF-16 units, as Discord counts."""

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
    """The text a channel shows: Markdown with escaped values for Discord, plain text for a toast."""

    title: str | None
    body: str


def render_notification(
    template: Template, channel: NotificationChannel, locale: str, payload: Mapping[str, Any]
) -> RenderedText:
    """Render in the language of the locale, truncated to the limits of the channel."""
    if errors := template.payload_errors(payload):
        raise Unrenderable("; ".join(map(str, errors)))
    text = select_text(template, channel, locale)
    values = {name: payload[name] for name in template.variables}
    limits = CHANNEL_LIMITS[channel]
    try:
        title = None if text.title is None else " ".join(compile_text(channel, text.title).render(values).split())
        body = compile_text(channel, text.body).render(values).strip()
    except (TemplateError, TypeError, ValueError, OverflowError) as error:  # a filter that does not accept the value
        raise Unrenderable(f"{template.key}: {error}") from None
    return RenderedText(title and truncate_utf16(title, limits.title), truncate_utf16(body, limits.body) or ELLIPSIS)


def select_text(template: Template, channel: NotificationChannel, locale: str) -> TemplateText:
    texts = template.texts.get(channel)
    if not texts:
        raise Unrenderable(f"{template.key} has no text for {channel}")
    return texts.get(locale.partition("-")[0]) or texts[FALLBACK_LOCALE]


def clean_value(value: Any) -> str:
    """Format a value without invisible characters."""
    text = str(value)[:MAX_CLEANED_LENGTH].replace("\r\n", "\n")
    return truncate_utf16(INVISIBLE_CHARACTERS.sub("", text), MAX_VALUE_LENGTH)


def escape_for_discord(value: Any) -> str:
    """Escape a value so that Discord shows it as is: no Markdown, no mention, no masked link."""
    escaped = MARKDOWN_CHARACTERS.sub(r"\\\g<0>", clean_value(value)).replace("@", "@\u200b")
    return LINE_START_MARKERS.sub(lambda match: f"{match[1]}{escape_line_start(match[2])}", escaped)


def escape_line_start(marker: str) -> str:
    return f"{marker}\\" if marker.isdigit() else f"\\{marker}"


def truncate_utf16(text: str, limit: int) -> str:
    """Truncate a text to a number of UTF-16 units, ending in an ellipsis."""
    if len(text) * 2 <= limit or (len(text) <= limit and utf16_length(text) <= limit):
        return text
    kept = text[: limit - 1]
    while utf16_length(kept) > limit - 1:
        kept = kept[: -max(1, (utf16_length(kept) - limit + 1) // 2)]
    return kept.rstrip("\\ \n") + ELLIPSIS  # a backslash at the end would escape what follows


def utf16_length(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


VALUE_FORMATTERS: dict[NotificationChannel, Callable[[Any], str]] = {
    NotificationChannel.USER_DM: escape_for_discord,
    NotificationChannel.GUILD_AUDIT_CHANNEL: escape_for_discord,
    NotificationChannel.DASHBOARD_TOAST: clean_value,
}
CHANNEL_SANDBOXES = {channel: TextSandbox(finalize) for channel, finalize in VALUE_FORMATTERS.items()}


@lru_cache(maxsize=1024)
def compile_text(channel: NotificationChannel, source: str) -> Compiled:
    return CHANNEL_SANDBOXES[channel].from_string(source)
