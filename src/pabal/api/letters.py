"""Dead letters: look at what failed for good, replay it, or say that it is seen to."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from pabal.api.door import Answer, Body, Door, Query
from pabal.api.events import Moment, see_that_it_comes
from pabal.api.page import Limit, cursor_of, place_of
from pabal.api.visit import Visit
from pabal.core.errors import Conflict, NotFound
from pabal.events import letters
from pabal.events.letters import Filter, Letter, State
from pabal.events.replay import replay_all, replay_one
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

Note = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
Some = Annotated[int, msgspec.Meta(ge=1)]


class LetterView(Answer, frozen=True):
    """One death of one event. `signature` is what it shares with others of the same cause."""

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


class WholeLetterView(LetterView, frozen=True, kw_only=True):
    """A dead letter with what its event carried and how each attempt ended."""

    original_payload: dict[str, Any]
    original_envelope: dict[str, Any]
    error_stack: str | None
    error_history: list[dict[str, Any]]
    resolved_by: UUID | None


class LetterPage(Answer, frozen=True):
    items: list[LetterView]
    cursor: str | None


class GroupView(Answer, frozen=True):
    """Dead letters of one cause, with one of them as an example."""

    signature: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example: UUID
    event_types: list[str]


class GroupPage(Answer, frozen=True):
    """The most frequent hundred at most: there is no next page."""

    items: list[GroupView]
    cursor: str | None = None


class Which(msgspec.Struct, frozen=True, kw_only=True):
    """What all questions about dead letters share."""

    type: str | None = None
    source: str | None = None
    target: str | None = None
    signature: str | None = None
    error_code: str | None = None
    since: Moment | None = None
    until: Moment | None = None

    def filter(self) -> Filter:
        see_that_it_comes("since", self.since)
        see_that_it_comes("until", self.until)
        return Filter(
            event_type=self.type,
            source=self.source,
            target=self.target,
            signature=self.signature,
            error_code=self.error_code,
            since=self.since,
            until=self.until,
        )


class GroupQuery(Query, Which, frozen=True, kw_only=True):
    """Which dead letters to group; the words are those of the list."""

    state: State = "unresolved"


class LetterQuery(GroupQuery, frozen=True, kw_only=True):
    """Which dead letters; `type` may hold *, `since` and `until` are about when they failed."""

    cursor: str | None = None
    limit: Limit = 50


class ReplayRequest(Body, Which, frozen=True, kw_only=True):
    """Which unresolved dead letters to replay, in the words of the list; with `limit` the oldest so many."""

    limit: Some | None = None


class Resolution(Body, frozen=True):
    """What was done about it."""

    note: Note


class Replayed(Answer, frozen=True):
    """The dead letter and the event that lives again: the same one, or a new one if its row was gone."""

    id: UUID
    event_id: UUID


class ReplayedAll(Answer, frozen=True):
    replayed: int


async def list_dead_letters(hub: Hub, query: LetterQuery) -> LetterPage:
    """Show what failed for good, the newest first; what nobody has resolved, unless `state` says otherwise."""
    async with hub.autocommit() as tx:
        rows = await letters.every(tx, query.filter(), query.state, before=place_of(query.cursor), limit=query.limit)
    return LetterPage([view_of(row, LetterView) for row in rows], cursor_of(rows, query.limit, "failed_at"))


async def group_dead_letters(hub: Hub, query: GroupQuery) -> GroupPage:
    """Show what is broken: dead letters by what they share, the most frequent first."""
    async with hub.autocommit() as tx:
        found = await letters.groups(tx, query.filter(), query.state)
    return GroupPage([msgspec.convert(each, GroupView, from_attributes=True) for each in found])


async def show_dead_letter(hub: Hub, id: UUID) -> WholeLetterView:  # noqa: A002 as the path names it
    """Show a dead letter with its payload, its stack and how each attempt ended."""
    async with hub.autocommit() as tx:
        return view_of(await letters.find(tx, id), WholeLetterView)


async def replay_dead_letter(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> Replayed:  # noqa: A002 as above
    """Let its event live again, with all its attempts. One that was replayed or resolved before is 409."""
    async with hub.transaction() as tx:
        return Replayed(id, await replay_one(tx, id, visit.by(caller.service)))


async def resolve_dead_letter(
    hub: Hub,
    visit: Visit,
    caller: Caller,
    id: UUID,  # noqa: A002 as above
    body: Resolution,
) -> WholeLetterView:
    """Say that it is seen to, and how. Its event stays as it is. One that was replayed or resolved before is 409."""
    async with hub.transaction() as tx:
        return view_of(await letters.resolve_one(tx, id, visit.by(caller.service), body.note), WholeLetterView)


async def replay_dead_letters(hub: Hub, visit: Visit, caller: Caller, body: ReplayRequest) -> ReplayedAll:
    """Replay all unresolved ones that match, batch by batch. What dies meanwhile is not among them."""
    by = visit.by(caller.service)
    return ReplayedAll(await replay_all(hub.transaction, body.filter(), by, limit=body.limit))


def view_of(letter: Letter, kind: type[LetterView]) -> Any:
    said = {name: getattr(letter, name) for name in kind.__struct_fields__}
    if "error_history" in said:
        said["error_history"] = [*(said["error_history"] or ())]
    return kind(**said)


DOORS = (
    Door("GET", "/v1/dead-letters", list_dead_letters, needs=Permission.ADMIN, tag="dead letters"),
    Door("GET", "/v1/dead-letters/groups", group_dead_letters, needs=Permission.ADMIN, tag="dead letters"),
    Door("POST", "/v1/dead-letters/replay", replay_dead_letters, needs=Permission.ADMIN, tag="dead letters"),
    Door(
        "GET",
        "/v1/dead-letters/{id}",
        show_dead_letter,
        needs=Permission.ADMIN,
        may_raise=(NotFound,),
        tag="dead letters",
    ),
    Door(
        "POST",
        "/v1/dead-letters/{id}/replay",
        replay_dead_letter,
        needs=Permission.ADMIN,
        may_raise=(NotFound, Conflict),
        tag="dead letters",
    ),
    Door(
        "POST",
        "/v1/dead-letters/{id}/resolve",
        resolve_dead_letter,
        needs=Permission.ADMIN,
        may_raise=(NotFound, Conflict),
        tag="dead letters",
    ),
)
