"""Dead letters: grouped by cause, as a list, and one of them; replaying and resolving them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.charts import sparkline
from pabal.console.i18n import Translator, translator_for
from pabal.console.pages import (
    build_url,
    confirm_page,
    is_count_confirmed,
    read_cursor,
    read_filters,
    read_query,
    redirect_with_flash,
    render_page,
)
from pabal.console.trace.items import dead_letter_url
from pabal.console.trace.timeline import failed_attempt_rows
from pabal.core.duration import parse_duration
from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.events.dead_letters.dead_letters import (
    DeadLetterFilter,
    DeadLetterState,
    count_dead_letters_by_hour,
    database_now,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    lock_open_dead_letters,
    resolve_dead_letter,
    resolve_dead_letters,
)
from pabal.events.dead_letters.replay import (
    list_oldest_dead_letter_ids,
    lock_replayable_dead_letters,
    replay_dead_letter,
    requeue_dead_letters,
)
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.web.pagination import decode_cursor, next_cursor

DEAD_LETTERS_PATH = "/console/dead"
DEAD_LETTER_LIST_PATH = f"{DEAD_LETTERS_PATH}/letters"
STATES: tuple[DeadLetterState, ...] = ("unresolved", "resolved", "all")
TIME_RANGES = ("1h", "24h", "7d", "30d")
FILTER_NAMES = ("type", "source", "target", "since")
PAGE_SIZE = 50
GROUP_SCAN_LIMIT = 10_000
"""Only the newest dead letters are grouped, to keep the page fast."""


async def dead_letter_groups_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Group the dead letters by cause, most frequent first."""
    filters, state = read_filters(request, "state", *FILTER_NAMES), read_state_filter(request)
    async with hub.autocommit() as tx:
        dead_letter_filter = parse_dead_letter_filter(filters, await database_now(tx))
        groups = await group_dead_letters(tx, dead_letter_filter, state, scan_limit=GROUP_SCAN_LIMIT)
        hourly_counts = await count_dead_letters_by_hour(
            tx, [group.signature for group in groups], dead_letter_filter, state, scan_limit=GROUP_SCAN_LIMIT
        )
    t = translator_for(request)
    return render_page(
        request,
        "dead_letters/groups.html",
        session=session,
        filters=filters,
        state=state,
        states=STATES,
        time_ranges=TIME_RANGES,
        groups=groups,
        total=sum(group.count for group in groups),
        scan_limit=GROUP_SCAN_LIMIT,
        sparklines={
            signature: sparkline(counts, describe_hourly_counts(t, counts))
            for signature, counts in hourly_counts.items()
        },
    )


async def dead_letters_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List the dead letters that match the filters, newest first."""
    filters, state = read_filters(request, "state", "signature", *FILTER_NAMES), read_state_filter(request)
    before = decode_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        dead_letter_filter = parse_dead_letter_filter(filters, await database_now(tx))
        rows = await list_dead_letters(tx, dead_letter_filter, state, before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "dead_letters/list.html",
        session=session,
        filters=filters,
        state=state,
        states=STATES,
        time_ranges=TIME_RANGES,
        rows=rows,
        next_cursor=next_cursor(rows, PAGE_SIZE, "failed_at"),
        current_cursor=before,
    )


async def dead_letter_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    dead_letter_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        dead_letter = await find_dead_letter(tx, dead_letter_id)
    attempts = failed_attempt_rows(translator_for(request), dead_letter.error_history)
    return render_page(request, "dead_letters/detail.html", session=session, dead_letter=dead_letter, attempts=attempts)


def read_state_filter(request: Request) -> DeadLetterState:
    """Return the state to list, by default the unresolved dead letters."""
    state = read_query(request, "state")
    return state if state in STATES else "unresolved"


def parse_dead_letter_filter(filters: dict[str, str], now: datetime) -> DeadLetterFilter:
    """Build the filter of a query string or a form."""
    return DeadLetterFilter(
        event_type=filters.get("type"),
        source=filters.get("source"),
        target=filters.get("target"),
        signature=filters.get("signature"),
        since=parse_time_filter("since", filters.get("since"), now),
        until=parse_time_filter("until", filters.get("until"), now),
    )


def parse_time_filter(field: str, text: str | None, now: datetime) -> datetime | None:
    """Parse an age (`2h`) or a timestamp."""
    if not text:
        return None
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid.of_field(field, "must be an age (90s, 15m, 2h, 7d) or a time (2026-01-31T18:00Z)") from None


def describe_hourly_counts(t: Translator, counts: list[int]) -> str:
    return t("dead_letters.last_day_summary", total=sum(counts), peak=max(counts))


PAGES = (
    Page(DEAD_LETTERS_PATH, dead_letter_groups_page),
    Page(DEAD_LETTER_LIST_PATH, dead_letters_page),
    Page(DEAD_LETTERS_PATH + "/{id:uuid}", dead_letter_page),
)


MAX_BATCH = 5000
"""Dead letters per action. One transaction handles exactly the confirmed number, and has to stay short."""
MAX_NOTE_LENGTH = 2000
CONFIRM_TEXTS = {
    ("replay", "many"): "dead_letters.replay.confirm_many",
    ("replay", "oldest"): "dead_letters.replay.confirm_oldest",
    ("resolve", "many"): "dead_letters.resolve.confirm_many",
    ("resolve", "oldest"): "dead_letters.resolve.confirm_oldest",
}


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """The dead letters that a form selects, its fields for the confirmation, and where to return."""

    ids: Sequence[UUID]
    fields: Form
    return_url: str

    @property
    def single_id(self) -> UUID | None:
        return self.ids[0] if len(self.ids) == 1 else None


async def replay_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Replay the selected dead letters, after confirmation of their number."""
    actor = operator_actor(request, session)
    async with hub.transaction() as tx:
        selection = await read_selection(tx, fields)
        replayable = await lock_replayable_dead_letters(tx, selection.ids)
        if not replayable and selection.single_id:
            await replay_dead_letter(tx, selection.single_id, actor)  # raises the reason
        if not replayable:
            return redirect_with_flash(selection.return_url, "dead_letters.replay.none")
        if not is_count_confirmed(fields, len(replayable)):
            return confirm_dead_letters_page(request, session, selection, "replay", len(replayable))
        events = await requeue_dead_letters(tx, replayable, actor)
    return redirect_with_flash(selection.return_url, "dead_letters.replay.done", count=len(events))


async def resolve_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Mark the selected dead letters as resolved, after confirmation of their number."""
    actor, note = operator_actor(request, session), parse_resolution_note(fields)
    async with hub.transaction() as tx:
        selection = await read_selection(tx, fields)
        unresolved = await lock_open_dead_letters(tx, selection.ids)
        if not unresolved and selection.single_id:
            await resolve_dead_letter(tx, selection.single_id, actor, note)  # raises the reason
        if not unresolved:
            return redirect_with_flash(selection.return_url, "dead_letters.resolve.none")
        if not is_count_confirmed(fields, len(unresolved)):
            return confirm_dead_letters_page(request, session, selection, "resolve", len(unresolved))
        resolved = await resolve_dead_letters(tx, unresolved, actor, note)
    return redirect_with_flash(selection.return_url, "dead_letters.resolve.done", count=len(resolved))


def confirm_dead_letters_page(
    request: Request,
    session: OperatorSession,
    selection: DeadLetterSelection,
    action: Literal["replay", "resolve"],
    count: int,
) -> Response:
    """Ask for confirmation. `count` may be smaller than the selection, which can include settled dead letters."""
    scope = "oldest" if len(selection.ids) == MAX_BATCH else "many"
    return confirm_page(
        request,
        session,
        text_id=CONFIRM_TEXTS[action, scope],
        count=count,
        fields=selection.fields,
        return_url=selection.return_url,
    )


async def read_selection(tx: Tx, fields: Form) -> DeadLetterSelection:
    """Read which dead letters a form selects.

    "All that match" is limited to those that existed when the form was first sent: the confirmation carries `until`.
    """
    filters = {name: fields[name] for name in ("signature", *FILTER_NAMES) if fields.get(name)}
    if "all" not in fields:
        ids = [*dict.fromkeys(map(parse_dead_letter_id, fields.getlist("letter")))]
        if not ids:
            raise Invalid.of_field("letter", "is missing: select at least one dead letter")
        return_url = dead_letter_url(ids[0]) if "one" in fields else build_url(DEAD_LETTER_LIST_PATH, **filters)
        return DeadLetterSelection(ids, fields, return_url)
    now = await database_now(tx)
    dead_letter_filter = parse_dead_letter_filter(filters | {"until": fields.get("until") or now.isoformat()}, now)
    times = (("since", dead_letter_filter.since), ("until", dead_letter_filter.until))
    fixed_fields = dict(fields) | {name: at.isoformat() for name, at in times if at}
    return_url = build_url(DEAD_LETTER_LIST_PATH if "signature" in filters else DEAD_LETTERS_PATH, **filters)
    ids = await list_oldest_dead_letter_ids(tx, dead_letter_filter, MAX_BATCH)
    return DeadLetterSelection(ids, ImmutableMultiDict(fixed_fields), return_url)


def parse_dead_letter_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid.of_field("letter", "is not a valid id") from None


def parse_resolution_note(fields: Form) -> str:
    note = fields.get("note", "").strip()
    if not 0 < len(note) <= MAX_NOTE_LENGTH:
        raise Invalid.of_field("note", f"must have 1 to {MAX_NOTE_LENGTH} characters")
    return note


DEAD_LETTER_ACTIONS = (
    Action(f"{DEAD_LETTERS_PATH}/replay", replay_dead_letters_action),
    Action(f"{DEAD_LETTERS_PATH}/resolve", resolve_dead_letters_action),
)
