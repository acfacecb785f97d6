"""Dead letters: what is broken, by cause; the letters of a cause; one of them."""

from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import cursor_of, place_of
from pabal.console.gate import Look
from pabal.console.pages import chosen, page
from pabal.console.spark import spark
from pabal.console.texts import Texts, texts_for
from pabal.console.timeline import attempts
from pabal.core.errors import Invalid
from pabal.events import letters
from pabal.events.letters import Filter, State
from pabal.operators.operators import Session
from pabal.settings import duration
from pabal.wiring import Hub

ROOM = "/console/dead"
STATES: tuple[State, ...] = ("unresolved", "resolved", "all")
SPANS = ("1h", "24h", "7d", "30d")
NARROWED = ("type", "source", "target", "since")
PAGE = 50
REACH = 10_000
"""Letters that are grouped at most, the newest; a page that counts more of them would be slow."""


async def groups(hub: Hub, request: Request, session: Session) -> Response:
    """What is broken, the most frequent cause first."""
    sought, state = chosen(request, "state", *NARROWED), state_of(request)
    async with hub.autocommit() as tx:
        which = filter_of(sought, await letters.clock(tx))
        found = await letters.groups(tx, which, state, reach=REACH)
        hours = await letters.recent(tx, [each.signature for each in found], which, state, reach=REACH)
    t = texts_for(request)
    return page(
        request,
        "dead/groups.html",
        session=session,
        sought=sought,
        state=state,
        states=STATES,
        spans=SPANS,
        groups=found,
        total=sum(each.count for each in found),
        reach=REACH,
        sparks={signature: spark(counts, in_words(t, counts)) for signature, counts in hours.items()},
    )


async def every(hub: Hub, request: Request, session: Session) -> Response:
    """The letters themselves, the newest first: of one cause, or of all."""
    sought, state = chosen(request, "state", "signature", *NARROWED), state_of(request)
    before = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        which = filter_of(sought, await letters.clock(tx))
        rows = await letters.every(tx, which, state, before=before, limit=PAGE)
    return page(
        request,
        "dead/letters.html",
        session=session,
        sought=sought,
        state=state,
        states=STATES,
        spans=SPANS,
        rows=rows,
        older=cursor_of(rows, PAGE, "failed_at"),
        later=before,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    letter_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        letter = await letters.find(tx, letter_id)
    tried = attempts(texts_for(request), letter.error_history)
    return page(request, "dead/one.html", session=session, it=letter, attempts=tried)


def state_of(request: Request) -> State:
    """Which half is looked at; the open one, unless the address says otherwise."""
    asked = request.query_params.get("state", "")
    return asked if asked in STATES else "unresolved"


def filter_of(said: dict[str, str], now: datetime) -> Filter:
    """Which letters are meant by what a form or an address says."""
    return Filter(
        event_type=said.get("type"),
        source=said.get("source"),
        target=said.get("target"),
        signature=said.get("signature"),
        since=moment_of("since", said.get("since"), now),
        until=moment_of("until", said.get("until"), now),
    )


def moment_of(field: str, written: str | None, now: datetime) -> datetime | None:
    """How long ago, or when."""
    if not written:
        return None
    try:
        return now - duration(written)
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(written)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid.one(field, "is how long ago (90s, 15m, 2h, 7d) or a moment (2026-01-31T18:00Z)") from None


def in_words(t: Texts, counts: list[int]) -> str:
    return t("deaths of a day").format(sum(counts), max(counts))


PAGES = (
    Look(ROOM, groups),
    Look(ROOM + "/letters", every),
    Look(ROOM + "/{id:uuid}", one),
)
