"""Dead letters: list, group, show, replay and resolve."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from pabal.api.events import AwareDatetime, check_time_in_range
from pabal.core.errors import Conflict, NotFound
from pabal.events.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterState,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from pabal.events.replay import replay_dead_letter, replay_matching_dead_letters
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.pagination import PageLimit, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, RequestQuery, ResponseBody, Route

ResolutionNote = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]


class DeadLetterView(ResponseBody, frozen=True):
    """One final failure of an event. Dead letters with the same cause share a `signature`."""

    id: UUID
    event_id: UUID | None
    original_event_id: UUID
    origin_id: UUID
    death: int
    original_event_type: str
    original_source_service: str
    original_target_service: str | None
    error_message: str
    error_code: str | None
    signature: str
    total_retry_count: int
    failed_at: datetime
    resolved_at: datetime | None
    resolved_by_actor: str | None
    resolution_notes: str | None
    replayed_at: datetime | None
    replay_count: int


class DeadLetterDetailView(DeadLetterView, frozen=True, kw_only=True):
    """A dead letter with the payload of its event and the error of each attempt."""

    original_payload: dict[str, Any]
    original_envelope: dict[str, Any]
    error_stack: str | None
    error_history: list[dict[str, Any]]
    resolved_by: UUID | None


class DeadLetterPage(ResponseBody, frozen=True):
    items: list[DeadLetterView]
    cursor: str | None


class DeadLetterGroupView(ResponseBody, frozen=True):
    """Dead letters with the same signature. `example` is the newest of them."""

    signature: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example: UUID
    event_types: list[str]


class DeadLetterGroupPage(ResponseBody, frozen=True):
    """At most 100 groups, the largest first; there is no next page."""

    items: list[DeadLetterGroupView]
    cursor: str | None = None


class DeadLetterCriteria(msgspec.Struct, frozen=True, kw_only=True):
    """The filters that all queries for dead letters share."""

    type: str | None = None
    source: str | None = None
    target: str | None = None
    signature: str | None = None
    error_code: str | None = None
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

    cursor: str | None = None
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


async def get_dead_letters(hub: Hub, query: DeadLetterQuery) -> DeadLetterPage:
    """List dead letters, the newest first. `state` defaults to `unresolved`."""
    async with hub.autocommit() as tx:
        dead_letters = await list_dead_letters(
            tx, query.to_filter(), query.state, before=decode_cursor(query.cursor), limit=query.limit
        )
    return DeadLetterPage(
        [dead_letter_view(dead_letter, DeadLetterView) for dead_letter in dead_letters],
        next_cursor(dead_letters, query.limit, "failed_at"),
    )


async def get_dead_letter_groups(hub: Hub, query: DeadLetterGroupQuery) -> DeadLetterGroupPage:
    """Group dead letters by error signature, the largest group first."""
    async with hub.autocommit() as tx:
        groups = await group_dead_letters(tx, query.to_filter(), query.state)
    return DeadLetterGroupPage([msgspec.convert(group, DeadLetterGroupView, from_attributes=True) for group in groups])


async def get_dead_letter(hub: Hub, id: UUID) -> DeadLetterDetailView:
    """Get a dead letter with its payload, stack trace and the error of each attempt."""
    async with hub.autocommit() as tx:
        return dead_letter_view(await find_dead_letter(tx, id), DeadLetterDetailView)


async def post_dead_letter_replay(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> DeadLetterReplayView:
    """Replay a dead letter: queue its event again, with all attempts. 409 if it was already replayed or resolved."""
    async with hub.transaction() as tx:
        return DeadLetterReplayView(id, await replay_dead_letter(tx, id, context.actor(caller.service)))


async def post_dead_letter_resolve(
    hub: Hub,
    context: RequestContext,
    caller: AuthenticatedService,
    id: UUID,
    body: DeadLetterResolveBody,
) -> DeadLetterDetailView:
    """Resolve a dead letter with a note. Its event does not change. 409 if it was already replayed or resolved."""
    async with hub.transaction() as tx:
        return dead_letter_view(
            await resolve_dead_letter(tx, id, context.actor(caller.service), body.note), DeadLetterDetailView
        )


async def post_dead_letter_bulk_replay(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: DeadLetterReplayBody
) -> DeadLetterBulkReplayView:
    """Replay all unresolved dead letters that match, in batches. Skips events that fail during the replay."""
    actor = context.actor(caller.service)
    return DeadLetterBulkReplayView(
        await replay_matching_dead_letters(hub.transaction, body.to_filter(), actor, limit=body.limit)
    )


def dead_letter_view(dead_letter: DeadLetter, view_type: type[DeadLetterView]) -> Any:
    fields = {name: getattr(dead_letter, name) for name in view_type.__struct_fields__}
    if "error_history" in fields:
        fields["error_history"] = [*(fields["error_history"] or ())]
    return view_type(**fields)


ROUTES = (
    Route("GET", "/v1/dead-letters", get_dead_letters, permission=Permission.ADMIN, tag="dead letters"),
    Route("GET", "/v1/dead-letters/groups", get_dead_letter_groups, permission=Permission.ADMIN, tag="dead letters"),
    Route(
        "POST", "/v1/dead-letters/replay", post_dead_letter_bulk_replay, permission=Permission.ADMIN, tag="dead letters"
    ),
    Route(
        "GET",
        "/v1/dead-letters/{id}",
        get_dead_letter,
        permission=Permission.ADMIN,
        may_raise=(NotFound,),
        tag="dead letters",
    ),
    Route(
        "POST",
        "/v1/dead-letters/{id}/replay",
        post_dead_letter_replay,
        permission=Permission.ADMIN,
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
