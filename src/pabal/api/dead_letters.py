"""Dead letters: list, group, show, replay and resolve."""

from dataclasses import replace
from typing import Annotated
from uuid import UUID

import msgspec

from pabal.api.events import AwareDatetime, check_time_in_range
from pabal.core.errors import Conflict, Forbidden, NotFound
from pabal.events.dead_letters.dead_letters import (
    DeadLetter,
    DeadLetterAccess,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterState,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from pabal.events.dead_letters.replay import replay_dead_letter, replay_matching_dead_letters
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.field_types import CursorText, FilterText
from pabal.web.pagination import PageLimit, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, RequestQuery, ResponseBody, Route

ResolutionNote = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]


class DeadLetterPage(ResponseBody, frozen=True):
    items: list[DeadLetter]
    cursor: str | None


class DeadLetterGroupPage(ResponseBody, frozen=True):
    """At most 100 groups, the largest first; there is no next page."""

    items: list[DeadLetterGroup]
    cursor: str | None = None


class DeadLetterCriteria(msgspec.Struct, frozen=True, kw_only=True):
    """The filters that all queries for dead letters share."""

    type: FilterText | None = None
    source: FilterText | None = None
    target: FilterText | None = None
    signature: FilterText | None = None
    error_code: FilterText | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    def to_filter(self) -> DeadLetterFilter:
        check_time_in_range("since", self.since)
        check_time_in_range("until", self.until)
        return DeadLetterFilter(
            event_type=self.type,
            source=self.source,
            target=self.target,
            signature=self.signature,
            error_code=self.error_code,
            since=self.since,
            until=self.until,
        )


class DeadLetterGroupQuery(RequestQuery, DeadLetterCriteria, frozen=True, kw_only=True):
    """Filters, the same as for the list."""

    state: DeadLetterState = "unresolved"


class DeadLetterQuery(DeadLetterGroupQuery, frozen=True, kw_only=True):
    """Filters. `type` may contain `*`; `since` and `until` compare with `failed_at`."""

    cursor: CursorText | None = None
    limit: PageLimit = 50


class DeadLetterReplayBody(RequestBody, DeadLetterCriteria, frozen=True, kw_only=True):
    """Filters, the same as for the list. With `limit`, replays only that many, the oldest first."""

    limit: PositiveCount | None = None


class DeadLetterResolveBody(RequestBody, frozen=True):
    """A note on how the dead letter was resolved."""

    note: ResolutionNote


class DeadLetterReplayView(ResponseBody, frozen=True):
    """The dead letter and the queued event: the original one, or a new one if that is deleted."""

    id: UUID
    event_id: UUID


class DeadLetterBulkReplayView(ResponseBody, frozen=True):
    replayed: int


def dead_letter_access(caller: AuthenticatedService) -> DeadLetterAccess:
    """The dead letters that a service may see: all with `hub:admin`, else its own."""
    return DeadLetterAccess(
        consumer=caller.service if Permission.CONSUME in caller.permissions else None,
        publisher=caller.service if Permission.PUBLISH in caller.permissions else None,
        all_services=Permission.ADMIN in caller.permissions,
    )


async def get_dead_letters(hub: Hub, caller: AuthenticatedService, query: DeadLetterQuery) -> DeadLetterPage:
    """List dead letters, the newest first. `state` defaults to `unresolved`.

    A service sees those of events sent to it (`events:consume`) and by it (`events:publish`); `hub:admin` sees all.
    """
    async with hub.autocommit() as tx:
        dead_letters = await list_dead_letters(
            tx,
            query.to_filter(),
            query.state,
            access=dead_letter_access(caller),
            before=decode_cursor(query.cursor),
            limit=query.limit,
        )
    return DeadLetterPage(dead_letters, next_cursor(dead_letters, query.limit, "failed_at"))


async def get_dead_letter_groups(hub: Hub, query: DeadLetterGroupQuery) -> DeadLetterGroupPage:
    """Group dead letters by error signature, the largest group first."""
    async with hub.autocommit() as tx:
        return DeadLetterGroupPage(await group_dead_letters(tx, query.to_filter(), query.state))


async def get_dead_letter(hub: Hub, caller: AuthenticatedService, id: UUID) -> DeadLetterDetail:
    """Get a dead letter with its payload, stack trace and the error of each attempt."""
    async with hub.autocommit() as tx:
        return await find_dead_letter(tx, id, dead_letter_access(caller))


async def post_dead_letter_replay(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> DeadLetterReplayView:
    """Replay a dead letter: queue its event again, with all attempts. 409 if it was already replayed or resolved.

    A service may replay what was sent to it (`events:consume`); `hub:admin` may replay all.
    """
    access = dead_letter_access(caller)
    async with hub.transaction() as tx:
        if not access.may_replay(await find_dead_letter(tx, id, access)):
            raise Forbidden("A service replays only dead letters of events that were sent to it")
        return DeadLetterReplayView(id, await replay_dead_letter(tx, id, context.actor(caller.service)))


async def post_dead_letter_resolve(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
    body: DeadLetterResolveBody,
) -> DeadLetterDetail:
    """Resolve a dead letter with a note. Its event does not change. 409 if it was already replayed or resolved."""
    async with hub.transaction() as tx:
        return await resolve_dead_letter(tx, id, context.actor(caller.service), body.note)


async def post_dead_letter_bulk_replay(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: DeadLetterReplayBody
) -> DeadLetterBulkReplayView:
    """Replay all unresolved dead letters that match, in batches. Skips events that fail during the replay.

    A service replays those of events sent to it (`events:consume`); `hub:admin` replays those of all services.
    """
    actor, criteria = context.actor(caller.service), body.to_filter()
    if not dead_letter_access(caller).all_services:
        if criteria.target not in {None, caller.service}:
            return DeadLetterBulkReplayView(0)  # what was sent to other services does not exist for this one
        criteria = replace(criteria, target=caller.service)
    return DeadLetterBulkReplayView(
        await replay_matching_dead_letters(hub.transaction, criteria, actor, limit=body.limit)
    )


ROUTES = (
    Route(
        "GET",
        "/v1/dead-letters",
        get_dead_letters,
        permission=Permission.CONSUME,
        or_permission=Permission.PUBLISH,
        or_admin=True,
        tag="dead letters",
    ),
    Route("GET", "/v1/dead-letters/groups", get_dead_letter_groups, permission=Permission.ADMIN, tag="dead letters"),
    Route(
        "POST",
        "/v1/dead-letters/replay",
        post_dead_letter_bulk_replay,
        permission=Permission.CONSUME,
        or_admin=True,
        tag="dead letters",
    ),
    Route(
        "GET",
        "/v1/dead-letters/{id}",
        get_dead_letter,
        permission=Permission.CONSUME,
        or_permission=Permission.PUBLISH,
        or_admin=True,
        may_raise=(NotFound,),
        tag="dead letters",
    ),
    Route(
        "POST",
        "/v1/dead-letters/{id}/replay",
        post_dead_letter_replay,
        permission=Permission.CONSUME,
        or_admin=True,
        may_raise=(NotFound, Conflict),
        tag="dead letters",
    ),
    Route(
        "POST",
        "/v1/dead-letters/{id}/resolve",
        post_dead_letter_resolve,
        permission=Permission.ADMIN,
        may_raise=(NotFound, Conflict),
        tag="dead letters",
    ),
)
