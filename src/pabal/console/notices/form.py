"""The form of a rule: what a rule says as fields, and what fields say as a rule."""

from datetime import timedelta
from typing import Any

from starlette.datastructures import ImmutableMultiDict

from pabal.console.gate import Form
from pabal.core.errors import Invalid
from pabal.notifications.plan import Channel
from pabal.notifications.rules import Rule
from pabal.settings import duration, in_words

BLANK: Form = ImmutableMultiDict([("is_active", "on")])


def said_by(rule: Rule) -> Form:
    """The fields of a rule as it stands."""
    fields = [
        ("name", rule.name),
        ("event_pattern", rule.event_pattern),
        ("template_key", rule.template_key),
        ("recipients", " ".join(rule.recipients)),
        *(("channels", channel) for channel in rule.channels),
        ("variables", "\n".join(f"{name}={path}" for name, path in rule.variables.items())),
        ("guild_path", rule.guild_path or ""),
        ("incident_path", rule.incident_path or ""),
        ("expires_after", "" if rule.expires_after is None else in_words(rule.expires_after)),
    ]
    return ImmutableMultiDict([*fields, *([("is_active", "on")] if rule.is_active else [])])


def read(given: Form) -> dict[str, Any]:
    """What a rule's columns are to be; whether they make sense together is for the rule to say."""
    return {
        "name": given.get("name", "").strip(),
        "event_pattern": given.get("event_pattern", "").strip(),
        "template_key": given.get("template_key", ""),
        "recipients": given.get("recipients", "").replace(",", " ").split(),
        "channels": [channel for channel in Channel if channel in given.getlist("channels")],
        "variables": dict(pair(line) for line in given.get("variables", "").splitlines() if line.strip()),
        "guild_path": given.get("guild_path", "").strip() or None,
        "incident_path": given.get("incident_path", "").strip() or None,
        "expires_after": span(given.get("expires_after", "").strip()),
        "is_active": "is_active" in given,
    }


def pair(line: str) -> tuple[str, str]:
    name, equals, path = line.partition("=")
    if not equals:
        raise Invalid.one("variables", f"{line} is not NAME=PATH")
    return name.strip(), path.strip()


def span(written: str) -> timedelta | None:
    if not written:
        return None
    try:
        return duration(written)
    except ValueError as error:
        raise Invalid.one("expires_after", str(error)) from None
