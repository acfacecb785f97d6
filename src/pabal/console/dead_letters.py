"""Dead letters: what is broken, by cause; the letters of a cause; one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.charts import sparkline
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.i18n import Translator, translator_for
from pabal.console.pages import (
    build_url,
    confirm_page,
    is_count_confirmed,
    read_filters,
    redirect_with_flash,
    render_page,
)
from pabal.console.trace import dead_letter_url, failed_attempts
from pabal.core.duration import parse_duration
from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.events.dead_letters import (
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
from pabal.events.replay import (
    list_oldest_dead_letter_ids,
    lock_replayable_dead_letters,
    replay_dead_letter,
    requeue_dead_letters,
)
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.web.pagination import decode_cursor, next_cursor

DEAD_LETTERS_PATH = "/console/dead"
STATES: tuple[DeadLetterState, ...] = ("unresolved", "resolved", "all")
TIME_RANGES = ("1h", "24h", "7d", "30d")
FILTER_NAMES = ("type", "source", "target", "since")
PAGE_SIZE = 50
GROUP_SCAN_LIMIT = 10_000
"""Letters that are grouped at most, the newest; a page that counts more of them would be slow."""


async def dead_letter_groups_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """What is broken, the most frequent cause first."""
    sought, state = read_filters(request, "state", *FILTER_NAMES), read_state_filter(request)
    async with hub.autocommit() as tx:
        which = parse_dead_letter_filter(sought, await database_now(tx))
        found = await group_dead_letters(tx, which, state, scan_limit=GROUP_SCAN_LIMIT)
        hours = await count_dead_letters_by_hour(
            tx, [each.signature for each in found], which, state, scan_limit=GROUP_SCAN_LIMIT
        )
    t = translator_for(request)
    return render_page(
        request,
        "dead_letters/groups.html",
        session=session,
        filters=sought,
        state=state,
        states=STATES,
        time_ranges=TIME_RANGES,
        groups=found,
        total=sum(each.count for each in found),
        scan_limit=GROUP_SCAN_LIMIT,
        sparklines={
            signature: sparkline(counts, describe_hourly_counts(t, counts)) for signature, counts in hours.items()
        },
    )


async def dead_letters_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """The letters themselves, the newest first: of one cause, or of all."""
    sought, state = read_filters(request, "state", "signature", *FILTER_NAMES), read_state_filter(request)
    before = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        which = parse_dead_letter_filter(sought, await database_now(tx))
        rows = await list_dead_letters(tx, which, state, before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "dead_letters/list.html",
        session=session,
        filters=sought,
        state=state,
        states=STATES,
        time_ranges=TIME_RANGES,
        rows=rows,
        next_cursor=next_cursor(rows, PAGE_SIZE, "failed_at"),
        current_cursor=before,
    )


async def dead_letter_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    letter_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        letter = await find_dead_letter(tx, letter_id)
    tried = failed_attempts(translator_for(request), letter.error_history)
    return render_page(request, "dead_letters/detail.html", session=session, dead_letter=letter, attempts=tried)


def read_state_filter(request: Request) -> DeadLetterState:
    """Which half is looked at; the open one, unless the address says otherwise."""
    asked = request.query_params.get("state", "")
    return asked if asked in STATES else "unresolved"


def parse_dead_letter_filter(filters: dict[str, str], now: datetime) -> DeadLetterFilter:
    """Which letters are meant by what a form or an address says."""
    return DeadLetterFilter(
        event_type=filters.get("type"),
        source=filters.get("source"),
        target=filters.get("target"),
        signature=filters.get("signature"),
        since=parse_time_filter("since", filters.get("since"), now),
        until=parse_time_filter("until", filters.get("until"), now),
    )


def parse_time_filter(field: str, text: str | None, now: datetime) -> datetime | None:
    """How long ago, or when."""
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
        raise Invalid.of_field(field, "is how long ago (90s, 15m, 2h, 7d) or a moment (2026-01-31T18:00Z)") from None


def describe_hourly_counts(t: Translator, counts: list[int]) -> str:
    return t("deaths of a day").format(sum(counts), max(counts))


PAGES = (
    Page(DEAD_LETTERS_PATH, dead_letter_groups_page),
    Page(DEAD_LETTERS_PATH + "/letters", dead_letters_page),
    Page(DEAD_LETTERS_PATH + "/{id:uuid}", dead_letter_page),
)


MAX_BATCH = 5000
"""Letters of one deed. It is one transaction, so that exactly what was agreed to is done; nobody waits long for it."""
MAX_NOTE_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which letters a form means, what it is asked again with, and where it came from."""

    ids: Sequence[UUID]
    fields: Form
    return_url: str

    @property
    def single_id(self) -> UUID | None:
        return self.ids[0] if len(self.ids) == 1 else None


async def replay_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Let their events live again: so many as was agreed to, or ask."""
    actor = operator_actor(request, session)
    async with hub.transaction() as tx:
        asked = await read_selection(tx, fields)
        good = await lock_replayable_dead_letters(tx, asked.ids)
        if not good and asked.single_id:
            await replay_dead_letter(tx, asked.single_id, actor)  # which says why not
        if not good:
            return redirect_with_flash(asked.return_url, "nothing to replay")
        if not is_count_confirmed(fields, len(good)):
            return confirm_dead_letters_page(request, session, asked, "replay", len(good))
        lives = await requeue_dead_letters(tx, good, actor)
    return redirect_with_flash(asked.return_url, "replayed so many", n=len(lives))


async def resolve_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Say that they are seen to, and how: so many as was agreed to, or ask."""
    actor, note = operator_actor(request, session), parse_resolution_note(fields)
    async with hub.transaction() as tx:
        asked = await read_selection(tx, fields)
        still = await lock_open_dead_letters(tx, asked.ids)
        if not still and asked.single_id:
            await resolve_dead_letter(tx, asked.single_id, actor, note)  # which says why not
        if not still:
            return redirect_with_flash(asked.return_url, "nothing to resolve")
        if not is_count_confirmed(fields, len(still)):
            return confirm_dead_letters_page(request, session, asked, "resolve", len(still))
        done = await resolve_dead_letters(tx, still, actor, note)
    return redirect_with_flash(asked.return_url, "resolved so many", n=len(done))


def confirm_dead_letters_page(
    request: Request, session: OperatorSession, selection: DeadLetterSelection, verb: str, count: int
) -> Response:
    """Those that cannot be meant are left out of the number, so it may be smaller than what was ticked."""
    says = f"{verb} oldest" if len(selection.ids) == MAX_BATCH else f"{verb} many"
    return confirm_page(
        request, session, text_id=says, count=count, fields=selection.fields, return_url=selection.return_url
    )


async def read_selection(tx: Tx, fields: Form) -> DeadLetterSelection:
    """Find out which are meant. What dies after the question was asked is not among all that match."""
    sought = {name: fields[name] for name in ("signature", *FILTER_NAMES) if fields.get(name)}
    if "all" not in fields:
        ids = [*dict.fromkeys(map(parse_dead_letter_id, fields.getlist("letter")))]
        if not ids:
            raise Invalid.of_field("letter", "is missing: tick at least one")
        back = dead_letter_url(ids[0]) if "one" in fields else build_url(f"{DEAD_LETTERS_PATH}/letters", **sought)
        return DeadLetterSelection(ids, fields, back)
    now = await database_now(tx)
    which = parse_dead_letter_filter(sought | {"until": fields.get("until") or now.isoformat()}, now)
    said = dict(fields) | {name: at.isoformat() for name, at in (("since", which.since), ("until", which.until)) if at}
    back = build_url(f"{DEAD_LETTERS_PATH}/letters" if "signature" in sought else DEAD_LETTERS_PATH, **sought)
    return DeadLetterSelection(await list_oldest_dead_letter_ids(tx, which, MAX_BATCH), ImmutableMultiDict(said), back)


def parse_dead_letter_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid.of_field("letter", "is not an id") from None


def parse_resolution_note(fields: Form) -> str:
    note = fields.get("note", "").strip()
    if not 0 < len(note) <= MAX_NOTE_LENGTH:
        raise Invalid.of_field("note", f"is 1 to {MAX_NOTE_LENGTH} characters: what was done about it")
    return note


DEAD_LETTER_ACTIONS = (
    Action(f"{DEAD_LETTERS_PATH}/replay", replay_dead_letters_action),
    Action(f"{DEAD_LETTERS_PATH}/resolve", resolve_dead_letters_action),
)
