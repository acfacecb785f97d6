"""Rules: which events make which notifications."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.notifications import RecipientType
from pabal.core.errors import Conflict, NotFound
from pabal.hub import Hub
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule, find_rule, list_rules, remove_rule, update_rule
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.pagination import PageQuery, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

RuleName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
EventPattern = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*$", max_length=128)]
RuleTemplateKey = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PayloadPath = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=255)]
PayloadPaths = Annotated[list[PayloadPath], msgspec.Meta(min_length=1, max_length=20)]
RuleChannels = Annotated[list[RecipientType], msgspec.Meta(min_length=1, max_length=3)]
ExpirySeconds = Annotated[int, msgspec.Meta(ge=1, le=31_536_000)]


class RuleBody(RequestBody, frozen=True, kw_only=True):
    """Of events of this pattern (* is one part, or at the end the rest) this template is made, for these recipients.

    `recipients` are paths into the payload, such as `user.discord_id`; of a list each is meant. `variables` says where
    the template's variables are; one that is not named is taken by its own name.
    """

    name: RuleName
    event_pattern: EventPattern
    template_key: RuleTemplateKey
    recipients: PayloadPaths
    channels: RuleChannels
    variables: dict[str, PayloadPath] = msgspec.field(default_factory=dict[str, PayloadPath])
    guild_path: PayloadPath | None = None
    incident_path: PayloadPath | None = None
    expires_after_seconds: ExpirySeconds | None = None
    is_active: bool = True


class RulePatchBody(RequestBody, frozen=True, kw_only=True):
    """What shall be otherwise; what is left out stays."""

    name: RuleName | UnsetType = UNSET
    event_pattern: EventPattern | UnsetType = UNSET
    template_key: RuleTemplateKey | UnsetType = UNSET
    recipients: PayloadPaths | UnsetType = UNSET
    channels: RuleChannels | UnsetType = UNSET
    variables: dict[str, PayloadPath] | UnsetType = UNSET
    guild_path: PayloadPath | UnsetType | None = UNSET
    incident_path: PayloadPath | UnsetType | None = UNSET
    expires_after_seconds: ExpirySeconds | UnsetType | None = UNSET
    is_active: bool | UnsetType = UNSET


class RuleView(ResponseBody, frozen=True):
    """A rule as it stands."""

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
    """Every rule, the oldest first."""
    async with hub.autocommit() as tx:
        rows = await list_rules(tx, after=decode_cursor(query.cursor), limit=query.limit)
    return RulePage([rule_view(row) for row in rows], next_cursor(rows, query.limit))


async def post_rule(hub: Hub, context: RequestContext, caller: AuthenticatedService, body: RuleBody) -> RuleView:
    """Add a rule, for what is published from now on."""
    async with hub.transaction() as tx:
        return rule_view(
            await add_rule(tx, hub.templates, RuleDraft(**rule_body_fields(body)), context.actor(caller.service))
        )


async def get_rule(hub: Hub, id: UUID) -> RuleView:
    """Show a rule."""
    async with hub.autocommit() as tx:
        return rule_view(await find_rule(tx, id))


async def patch_rule(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID, body: RulePatchBody
) -> RuleView:
    """Change a rule, from the next event on."""
    async with hub.transaction() as tx:
        return rule_view(
            await update_rule(tx, hub.templates, id, rule_body_fields(body), context.actor(caller.service))
        )


async def delete_rule(hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID) -> None:
    """Forget a rule. What it asked for already is sent."""
    async with hub.transaction() as tx:
        await remove_rule(tx, id, context.actor(caller.service))


def rule_body_fields(body: RuleBody | RulePatchBody) -> dict[str, Any]:
    """What a body names, in the rule's own words."""
    named = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    if "expires_after_seconds" in named:
        seconds = named.pop("expires_after_seconds")
        named["expires_after"] = None if seconds is None else timedelta(seconds=seconds)
    return named


def rule_view(rule: Rule) -> RuleView:
    seen = {name: getattr(rule, name) for name in RuleView.__struct_fields__ if name != "expires_after_seconds"}
    lives = rule.expires_after
    return RuleView(**seen, expires_after_seconds=None if lives is None else round(lives.total_seconds()))


RULE_PATH = "/v1/notification-rules/{id}"
ROUTES = tuple(
    Route(method, path, handler, permission=Permission.ADMIN, status=answers, may_raise=may_raise, tag="notifications")
    for method, path, handler, answers, may_raise in (
        ("GET", "/v1/notification-rules", get_rules, 200, ()),
        ("POST", "/v1/notification-rules", post_rule, 201, (Conflict,)),
        ("GET", RULE_PATH, get_rule, 200, (NotFound,)),
        ("PATCH", RULE_PATH, patch_rule, 200, (NotFound, Conflict)),
        ("DELETE", RULE_PATH, delete_rule, 204, (NotFound,)),
    )
)
