"""Rules: which events cause which notifications."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.core.errors import Conflict, NotFound
from pabal.hub import Hub
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule, find_rule, list_rules, remove_rule, update_rule
from pabal.notifications.states import RecipientType
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.pagination import PageQuery, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

RuleName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
EventPattern = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*$(?!\n)", max_length=128)]
RuleTemplateKey = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PayloadPathText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$(?!\n)", max_length=255)]
PayloadPathTexts = Annotated[list[PayloadPathText], msgspec.Meta(min_length=1, max_length=20)]
RuleVariables = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], PayloadPathText], msgspec.Meta(max_length=100)
]
RuleChannels = Annotated[list[RecipientType], msgspec.Meta(min_length=1, max_length=3)]
ExpirySeconds = Annotated[int, msgspec.Meta(ge=1, le=31_536_000)]


class RuleBody(RequestBody, frozen=True, kw_only=True):
    """When an event matches the pattern, send the template to the recipients. `*` matches one part, at the end several.

    `recipients` are paths into the payload, such as `user.discord_id`; a path through a list means every element.
    `variables` maps the template's variables to paths; by default the path is the variable's name.
    """

    name: RuleName
    event_pattern: EventPattern
    template_key: RuleTemplateKey
    recipients: PayloadPathTexts
    channels: RuleChannels
    variables: RuleVariables = msgspec.field(default_factory=dict[str, PayloadPathText])
    guild_path: PayloadPathText | None = None
    incident_path: PayloadPathText | None = None
    expires_after_seconds: ExpirySeconds | None = None
    is_active: bool = True


class RulePatchBody(RequestBody, frozen=True, kw_only=True):
    """The fields to change. Omitted fields stay unchanged."""

    name: RuleName | UnsetType = UNSET
    event_pattern: EventPattern | UnsetType = UNSET
    template_key: RuleTemplateKey | UnsetType = UNSET
    recipients: PayloadPathTexts | UnsetType = UNSET
    channels: RuleChannels | UnsetType = UNSET
    variables: RuleVariables | UnsetType = UNSET
    guild_path: PayloadPathText | UnsetType | None = UNSET
    incident_path: PayloadPathText | UnsetType | None = UNSET
    expires_after_seconds: ExpirySeconds | UnsetType | None = UNSET
    is_active: bool | UnsetType = UNSET


class RuleView(ResponseBody, frozen=True):
    """A rule."""

    id: UUID
    name: str
    event_pattern: str
    template_key: str
    recipients: list[str]
    channels: list[RecipientType]
    variables: dict[str, str]
    guild_path: str | None
    incident_path: str | None
    expires_after_seconds: int | None
    is_active: bool
    created_by: str
    created_at: datetime
    updated_at: datetime


class RulePage(ResponseBody, frozen=True):
    items: list[RuleView]
    cursor: str | None


async def get_rules(hub: Hub, query: PageQuery) -> RulePage:
    """List the rules, the oldest first."""
    async with hub.autocommit() as tx:
        rows = await list_rules(tx, after=decode_cursor(query.cursor), limit=query.limit)
    return RulePage([rule_view(row) for row in rows], next_cursor(rows, query.limit))


async def post_rule(hub: Hub, context: RequestContext, caller: AuthenticatedService, body: RuleBody) -> RuleView:
    """Add a rule. It applies to events that are published from now on."""
    async with hub.transaction() as tx:
        return rule_view(
            await add_rule(tx, hub.templates, RuleDraft(**rule_body_fields(body)), context.actor(caller.service))
        )


async def get_rule(hub: Hub, id: UUID) -> RuleView:
    """Get a rule."""
    async with hub.autocommit() as tx:
        return rule_view(await find_rule(tx, id))


async def patch_rule(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID, body: RulePatchBody
) -> RuleView:
    """Change a rule. The change applies from the next event on."""
    async with hub.transaction() as tx:
        return rule_view(
            await update_rule(tx, hub.templates, id, rule_body_fields(body), context.actor(caller.service))
        )


async def delete_rule(hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID) -> None:
    """Remove a rule. Notifications it has requested are still sent."""
    async with hub.transaction() as tx:
        await remove_rule(tx, id, context.actor(caller.service))


def rule_body_fields(body: RuleBody | RulePatchBody) -> dict[str, Any]:
    """The fields that a body sets, by the names of RuleDraft."""
    fields = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    if "expires_after_seconds" in fields:
        seconds = fields.pop("expires_after_seconds")
        fields["expires_after"] = None if seconds is None else timedelta(seconds=seconds)
    return fields


def rule_view(rule: Rule) -> RuleView:
    fields = {name: getattr(rule, name) for name in RuleView.__struct_fields__ if name != "expires_after_seconds"}
    seconds = None if rule.expires_after is None else round(rule.expires_after.total_seconds())
    return RuleView(**fields, expires_after_seconds=seconds)


RULE_PATH = "/v1/notification-rules/{id}"
ROUTES = tuple(
    Route(method, path, handler, permission=Permission.ADMIN, status=status, may_raise=may_raise, tag="notifications")
    for method, path, handler, status, may_raise in (
        ("GET", "/v1/notification-rules", get_rules, 200, ()),
        ("POST", "/v1/notification-rules", post_rule, 201, (Conflict,)),
        ("GET", RULE_PATH, get_rule, 200, (NotFound,)),
        ("PATCH", RULE_PATH, patch_rule, 200, (NotFound, Conflict)),
        ("DELETE", RULE_PATH, delete_rule, 204, (NotFound,)),
    )
)
