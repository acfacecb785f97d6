"""Dead letters: what is broken, by cause; the letters of a cause; one of them."""

from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import decode_cursor, next_cursor
from pabal.console.gate import Page
from pabal.console.pages import read_filters, render_page
from pabal.console.spark import sparkline
from pabal.console.texts import Translator, translator_for
from pabal.console.timeline import failed_attempts
from pabal.core.errors import Invalid
from pabal.events import letters
from pabal.events.letters import DeadLetterFilter, DeadLetterState
from pabal.operators.operators import OperatorSession
from pabal.settings import parse_duration
from pabal.wiring import Hub

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
        which = parse_dead_letter_filter(sought, await letters.database_now(tx))
        found = await letters.group_dead_letters(tx, which, state, scan_limit=GROUP_SCAN_LIMIT)
        hours = await letters.count_dead_letters_by_hour(
            tx, [each.signature for each in found], which, state, scan_limit=GROUP_SCAN_LIMIT
        )
    t = translator_for(request)
    return render_page(
        request,
        "dead/groups.html",
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
        which = parse_dead_letter_filter(sought, await letters.database_now(tx))
        rows = await letters.list_dead_letters(tx, which, state, before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "dead/letters.html",
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
        letter = await letters.find_dead_letter(tx, letter_id)
    tried = failed_attempts(translator_for(request), letter.error_history)
    return render_page(request, "dead/one.html", session=session, dead_letter=letter, attempts=tried)


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
