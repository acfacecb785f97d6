"""Rules: which notifications an event sends. Add, change, enable, disable and remove them."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from markupsafe import Markup
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.i18n import Translator, translator_for
from pabal.console.notifications.notifications import NOTIFICATIONS_PATH
from pabal.console.pages import confirm_page, is_count_confirmed, redirect_with_flash, render_page
from pabal.core.duration import format_duration, parse_duration
from pabal.core.errors import Conflict, FieldError, Invalid
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.rules.rules import (
    Rule,
    RuleDraft,
    add_rule,
    find_rule,
    list_rules,
    remove_rule,
    rule_columns,
    update_rule,
)
from pabal.operators.operators import OperatorSession
from pabal.web.errors import error_status

BLANK_RULE_FORM: Form = ImmutableMultiDict([("is_active", "on")])


def rule_form_fields(rule: Rule) -> Form:
    """Return the form fields of a rule."""
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
    """Parse the form into columns of a rule. Whether they fit together is validated by the rule."""
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


RULES_PATH = NOTIFICATIONS_PATH + "/rules"
MAX_RULES = 500
"""Rules on the page; they are written by hand, so there are few."""


async def rules_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t = translator_for(request)
    async with hub.autocommit() as tx:
        rules = [(rule, describe_rule(t, rule)) for rule in await list_rules(tx, limit=MAX_RULES)]
    return render_page(request, "notifications/rules.html", session=session, rules=rules)


async def new_rule_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return render_rule_form(hub, request, session, BLANK_RULE_FORM)


async def rule_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    async with hub.autocommit() as tx:
        rule = await find_rule(tx, request.path_params["id"])
    return render_rule_form(hub, request, session, rule_form_fields(rule), rule=rule)


async def add_rule_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    try:
        draft = RuleDraft(**parse_rule_form(fields))
        async with hub.transaction() as tx:
            await add_rule(tx, hub.templates, draft, operator_actor(request, session))
    except (Invalid, Conflict) as error:
        return render_rule_form(hub, request, session, fields, error=error)
    return redirect_with_flash(RULES_PATH, "notifications.rule.saved")


async def change_rule_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Update the columns that differ, so that the audit log lists only those."""
    async with hub.autocommit() as tx:
        rule = await find_rule(tx, request.path_params["id"])
    try:
        old_values, new_values = rule_columns(rule), parse_rule_form(fields)
        changes = {name: value for name, value in new_values.items() if old_values[name] != value}
        if changes:
            async with hub.transaction() as tx:
                await update_rule(tx, hub.templates, rule.id, changes, operator_actor(request, session))
    except (Invalid, Conflict) as error:
        return render_rule_form(hub, request, session, fields, rule=rule, error=error)
    return redirect_with_flash(RULES_PATH, "notifications.rule.saved")


async def enable_rule_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    return await set_rule_active(hub, request, session, is_active=True)


async def disable_rule_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    return await set_rule_active(hub, request, session, is_active=False)


async def set_rule_active(hub: Hub, request: Request, session: OperatorSession, *, is_active: bool) -> Response:
    rule_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, rule_id, {"is_active": is_active}, operator_actor(request, session))
    return redirect_with_flash(RULES_PATH, "notifications.rule.enabled" if is_active else "notifications.rule.disabled")


async def remove_rule_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    rule_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        rule = await find_rule(tx, rule_id)
        if not is_count_confirmed(fields, 1):
            return confirm_page(
                request,
                session,
                text_id="notifications.rule.confirm_remove",
                count=1,
                fields=fields,
                return_url=RULES_PATH,
                name=rule.name,
            )
        await remove_rule(tx, rule_id, operator_actor(request, session))
    return redirect_with_flash(RULES_PATH, "notifications.rule.removed")


def render_rule_form(
    hub: Hub,
    request: Request,
    session: OperatorSession,
    fields: Form,
    *,
    rule: Rule | None = None,
    error: Invalid | Conflict | None = None,
) -> Response:
    """Render the form with its values, and the errors beside their fields."""
    field_errors = error.errors if isinstance(error, Invalid) else [FieldError("name", str(error))] if error else []
    return render_page(
        request,
        "notifications/rule.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        rule=rule,
        description=None if rule is None else describe_rule(translator_for(request), rule),
        fields=fields,
        errors=errors_by_field(field_errors),
        template_keys=[template.key for template in hub.templates.all()],
        channels=[*NotificationChannel],
    )


def errors_by_field(errors: Iterable[FieldError]) -> dict[str, list[str]]:
    """Group errors by form field: `recipients[1]` belongs to `recipients`."""
    grouped: dict[str, list[str]] = {}
    for error in errors:
        field = error.field.partition("[")[0].partition(".")[0]
        grouped.setdefault(field, []).append(error.why if error.field == field else str(error))
    return grouped


def describe_rule(t: Translator, rule: Rule) -> Markup:
    """Describe a rule in one sentence."""
    values: dict[str, Any] = {
        "events": code_elements([rule.event_pattern]),
        "recipients": code_elements(rule.recipients),
        "template": code_elements([rule.template_key]),
        "channels": ", ".join(t.variant("notifications.channel", channel) for channel in rule.channels),
    }
    pattern = Markup(t.pattern("notifications.rule.description"))  # noqa: S704 our own text; its values are escaped
    return pattern.format(**values)


def code_elements(words: Iterable[str]) -> Markup:
    return Markup(", ").join(Markup('<code class="wrap">{}</code>').format(word) for word in words)


PAGES = (
    Page(RULES_PATH, rules_page),
    Page(RULES_PATH + "/new", new_rule_page),
    Page(RULES_PATH + "/{id:uuid}", rule_page),
    Action(RULES_PATH, add_rule_action),
    Action(RULES_PATH + "/{id:uuid}", change_rule_action),
    Action(RULES_PATH + "/{id:uuid}/on", enable_rule_action),
    Action(RULES_PATH + "/{id:uuid}/off", disable_rule_action),
    Action(RULES_PATH + "/{id:uuid}/remove", remove_rule_action),
)
