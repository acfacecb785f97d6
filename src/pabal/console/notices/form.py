"""The form of a rule: what a rule says as fields, and what fields say as a rule."""

from datetime import timedelta
from typing import Any

from starlette.datastructures import ImmutableMultiDict

from pabal.console.gate import Form
from pabal.core.errors import Invalid
from pabal.notifications.plan import NotificationChannel
from pabal.notifications.rules import Rule
from pabal.settings import format_duration, parse_duration

BLANK_RULE_FORM: Form = ImmutableMultiDict([("is_active", "on")])


def rule_form_fields(rule: Rule) -> Form:
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
        ("expires_after", "" if rule.expires_after is None else format_duration(rule.expires_after)),
    ]
    return ImmutableMultiDict([*fields, *([("is_active", "on")] if rule.is_active else [])])


def parse_rule_form(fields: Form) -> dict[str, Any]:
    """What a rule's columns are to be; whether they make sense together is for the rule to say."""
    return {
        "name": fields.get("name", "").strip(),
        "event_pattern": fields.get("event_pattern", "").strip(),
        "template_key": fields.get("template_key", ""),
        "recipients": fields.get("recipients", "").replace(",", " ").split(),
        "channels": [channel for channel in NotificationChannel if channel in fields.getlist("channels")],
        "variables": dict(
            parse_variable_line(line) for line in fields.get("variables", "").splitlines() if line.strip()
        ),
        "guild_path": fields.get("guild_path", "").strip() or None,
        "incident_path": fields.get("incident_path", "").strip() or None,
        "expires_after": parse_expiry(fields.get("expires_after", "").strip()),
        "is_active": "is_active" in fields,
    }


def parse_variable_line(line: str) -> tuple[str, str]:
    name, equals, path = line.partition("=")
    if not equals:
        raise Invalid.of_field("variables", f"{line} is not NAME=PATH")
    return name.strip(), path.strip()


def parse_expiry(text: str) -> timedelta | None:
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Invalid.of_field("expires_after", str(error)) from None
