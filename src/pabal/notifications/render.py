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
from pabal.notifications.grammar import Sandbox
from pabal.notifications.plan import Channel
from pabal.notifications.template import Template, Text

FALLBACK = "en"
"""For a language that no template speaks."""
LONGEST_VALUE = 1000
"""Characters of one value: a long one must not crowd out the words around it."""
MORE = "…"

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, and those that make a line read other than it is written."""
MARKS = re.compile(r"[\\`*_~|<>\[\]()#:]")
AT_LINE_START = re.compile(r"^([^\S\n]*)([-+]|\d+(?=\.))", re.MULTILINE)


class Unrenderable(PabalError):
    """The template and the payload no longer fit: one of them changed since the request was made."""

    code = "unrenderable"


@dataclass(frozen=True, slots=True)
class Limits:
    """Most UTF-16 units of a title and of a body; how Discord counts, and never fewer than characters."""

    title: int
    body: int


DISCORD = Limits(256, 4096)
TOAST = Limits(120, 1000)
LIMITS = {Channel.USER_DM: DISCORD, Channel.GUILD_AUDIT_CHANNEL: DISCORD, Channel.DASHBOARD_TOAST: TOAST}


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the channel shows. For Discord the values in it are escaped; for a toast it is plain text, not HTML."""

    title: str | None
    body: str


def render(template: Template, channel: Channel, locale: str, payload: Mapping[str, Any]) -> Rendered:
    """Write the notice down in the language of the locale, cut to what the channel takes."""
    if mistakes := template.wrong(payload):
        raise Unrenderable("; ".join(map(str, mistakes)))
    text = text_for(template, channel, locale)
    given = {name: payload[name] for name in template.variables}
    limits = LIMITS[channel]
    try:
        title = None if text.title is None else " ".join(compiled(channel, text.title).render(given).split())
        body = compiled(channel, text.body).render(given).strip()
    except (TemplateError, TypeError, ValueError, OverflowError) as error:  # a filter that the value is not for
        raise Unrenderable(f"{template.key}: {error}") from None
    return Rendered(title and cut(title, limits.title), cut(body, limits.body) or MORE)


def text_for(template: Template, channel: Channel, locale: str) -> Text:
    spoken = template.texts.get(channel)
    if not spoken:
        raise Unrenderable(f"{template.key} has no text for {channel}")
    return spoken.get(locale.partition("-")[0]) or spoken[FALLBACK]


def plain(value: Any) -> str:
    """A value as people read it, without what they cannot see."""
    text = UNSEEN.sub("", str(value).replace("\r\n", "\n"))
    return cut(text, LONGEST_VALUE)


def for_discord(value: Any) -> str:
    """A value in which Discord finds no markdown, no mention and no link behind other words."""
    escaped = MARKS.sub(r"\\\g<0>", plain(value)).replace("@", "@\u200b")
    return AT_LINE_START.sub(lambda start: f"{start[1]}{bullet(start[2])}", escaped)


def bullet(sign: str) -> str:
    return f"{sign}\\" if sign.isdigit() else f"\\{sign}"


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as fits, with a sign that there was more."""
    if len(text) * 2 <= limit or units(text) <= limit:
        return text
    kept = text[: limit - 1]
    while units(kept) > limit - 1:
        kept = kept[: -max(1, (units(kept) - limit + 1) // 2)]
    return kept.rstrip("\\ \n") + MORE  # half an escape would take hold of what follows


def units(text: str) -> int:
    return len(text) + sum(each > "\uffff" for each in text)


FINALIZE: dict[Channel, Callable[[Any], str]] = {
    Channel.USER_DM: for_discord,
    Channel.GUILD_AUDIT_CHANNEL: for_discord,
    Channel.DASHBOARD_TOAST: plain,
}
SANDBOXES = {channel: Sandbox(finalize) for channel, finalize in FINALIZE.items()}


@lru_cache(maxsize=1024)
def compiled(channel: Channel, source: str) -> Compiled:
    return SANDBOXES[channel].from_string(source)
