"""The rules: which events make which notifications; added, changed, switched and removed."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from markupsafe import Markup
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Action, Form, Page, operator_actor
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


RULES_PATH = NOTIFICATIONS_PATH + "/rules"
MAX_RULES = 500
"""Rules on the page: people write them, so there are not many."""


async def rules_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t = translator_for(request)
    async with hub.autocommit() as tx:
        told = [(rule, describe_rule(t, rule)) for rule in await list_rules(tx, limit=MAX_RULES)]
    return render_page(request, "notifications/rules.html", session=session, rules=told)


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
    return redirect_with_flash(RULES_PATH, "rule saved")


async def change_rule_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Change what the form has otherwise; what it leaves as it was is not said to have changed."""
    async with hub.autocommit() as tx:
        rule = await find_rule(tx, request.path_params["id"])
    try:
        was, wanted = rule_columns(rule), parse_rule_form(fields)
        to = {name: value for name, value in wanted.items() if was[name] != value}
        if to:
            async with hub.transaction() as tx:
                await update_rule(tx, hub.templates, rule.id, to, operator_actor(request, session))
    except (Invalid, Conflict) as error:
        return render_rule_form(hub, request, session, fields, rule=rule, error=error)
    return redirect_with_flash(RULES_PATH, "rule saved")


async def enable_rule_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    return await set_rule_active(hub, request, session, is_active=True)


async def disable_rule_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    return await set_rule_active(hub, request, session, is_active=False)


async def set_rule_active(hub: Hub, request: Request, session: OperatorSession, *, is_active: bool) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, row, {"is_active": is_active}, operator_actor(request, session))
    return redirect_with_flash(RULES_PATH, "switched on" if is_active else "switched off")


async def remove_rule_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await find_rule(tx, row)
        if not is_count_confirmed(fields, 1):
            return confirm_page(request, session, text_id="remove rules", count=1, fields=fields, return_url=RULES_PATH)
        await remove_rule(tx, row, operator_actor(request, session))
    return redirect_with_flash(RULES_PATH, "rule removed")


def render_rule_form(
    hub: Hub,
    request: Request,
    session: OperatorSession,
    fields: Form,
    *,
    rule: Rule | None = None,
    error: Invalid | Conflict | None = None,
) -> Response:
    """The form with what somebody said, and beside each field what is wrong with it."""
    mistakes = error.errors if isinstance(error, Invalid) else [FieldError("name", str(error))] if error else []
    return render_page(
        request,
        "notifications/rule.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        rule=rule,
        description=None if rule is None else describe_rule(translator_for(request), rule),
        fields=fields,
        errors=errors_by_field(mistakes),
        template_keys=[each.key for each in hub.templates.all()],
        channels=[*NotificationChannel],
    )


def errors_by_field(errors: Iterable[FieldError]) -> dict[str, list[str]]:
    """Mistakes by the field of the form they are about: `recipients[1]` is about `recipients`."""
    found: dict[str, list[str]] = {}
    for each in errors:
        field = each.field.partition("[")[0].partition(".")[0]
        found.setdefault(field, []).append(each.why if each.field == field else str(each))
    return found


def describe_rule(t: Translator, rule: Rule) -> Markup:
    """A rule in words."""
    said: dict[str, Any] = {
        "events": code_elements([rule.event_pattern]),
        "to": code_elements(rule.recipients),
        "template": code_elements([rule.template_key]),
        "channels": ", ".join(t(f"via {channel}") for channel in rule.channels),
    }
    return Markup(t("rule does")).format(**said)  # noqa: S704 our own words, and what is put into them is escaped


def code_elements(words: Iterable[str]) -> Markup:
    return Markup(", ").join(Markup('<code class="wraps">{}</code>').format(word) for word in words)


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
