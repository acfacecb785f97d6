"""Conversations, for an operator: who is connected to whose bot, and everything that ends or resumes it."""

from dataclasses import asdict
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.pairing import place_of
from pabal.console.download import download
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.pages import agreed, chosen, confirm, confirmed, link, page, then
from pabal.console.relay.room import FEW, PAGE, ROOM
from pabal.console.veil import veiled
from pabal.core.actor import Actor
from pabal.core.base64url import encoded
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.operators.operators import Session
from pabal.relay import accounts, conversations, messages, roster
from pabal.relay.erase import erase, holdings
from pabal.relay.export import export
from pabal.relay.messages import Chosen
from pabal.relay.page import standing
from pabal.wiring import Hub

TALK = f"{ROOM}/conversation"
NOBODY = UUID(int=0)
ENDING = ("unpair", "block")
"""Deeds that cancel what waits for an answer."""


async def every(hub: Hub, request: Request, session: Session) -> Response:
    """Conversations by their keys: everybody's, or those of one account. A whole key leads to its page."""
    said = chosen(request, "account")
    key = raw(request, "key").strip()
    if key:
        return then(link(TALK, key=key))
    after = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        whose = await meant(tx, said.get("account"))
        rows = await conversations.every(tx, account=whose, after=after, limit=PAGE + 1)
        rows, more = rows[:PAGE], rows[PAGE:]
        names = await roster.names(tx, {each.account_id for each in rows if each.account_id})
    return page(
        request,
        "relay/conversations.html",
        session=session,
        rows=rows,
        names=names,
        sought=said,
        following=encoded(rows[-1].conversation_key.encode()) if more else None,
        later=after,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    key = raw(request, "key")
    async with hub.autocommit() as tx:
        now = await standing(tx, key)
        recent = await messages.every(tx, Chosen(conversation=key), FEW)
    return page(request, "relay/conversation.html", session=session, now=now, recent=recent.items)


async def change(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Connect, disconnect, keep out or let in; where messages are cancelled by it, that is agreed to before."""
    deed, key = request.path_params["deed"], given.get("key", "")
    back = link(TALK, key=key)
    async with hub.transaction() as tx:
        ends = await ended_by(tx, deed, key)
        if ends is not None and not agreed(given):
            who = veiled(key)
            return confirm(request, session, says=f"sure {deed}", count=ends, carries=given, back=back, who=who)
        await carry_out(tx, hub, deed, key, by(request, session))
    return then(back, f"done {deed}")


async def take_along(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Everything the hub has of a conversation, as a file. A deed, because that somebody took it is written down."""
    async with hub.transaction() as tx:
        return download(await export(tx, given.get("key", ""), by(request, session)), "conversation.json")


async def forget(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Erase everything of a conversation, with as many rows as were agreed to."""
    key = given.get("key", "")
    async with hub.transaction() as tx:
        await conversations.held(tx, key)
        there = await holdings(tx, key)
        if not confirmed(given, there.rows):
            return confirm(
                request,
                session,
                says="sure erase rows",
                count=there.rows,
                carries=given,
                back=link(TALK, key=key),
                who=veiled(key),
                **asdict(there),
            )
        gone = await erase(tx, key, by(request, session))
    return then(f"{ROOM}/conversations", "done erase", messages=gone.messages, rows=gone.rows)


async def ended_by(tx: Tx, deed: str, key: str, account: UUID | None = None) -> int | None:
    """How many messages a deed would cancel in a conversation, held from here on; None for one that cancels none."""
    await conversations.held(tx, key, account)
    return (await standing(tx, key)).open_messages if deed in ENDING else None


async def carry_out(tx: Tx, hub: Hub, deed: str, key: str, actor: Actor, *, account: UUID | None = None) -> None:
    """Do it: for an operator, or for the owner of this account, to whom everybody else's are not there."""
    match deed:
        case "unpair":
            await conversations.unpair(tx, key, actor, account)
        case "block":
            await conversations.block(tx, key, actor, account)
        case "unblock":
            await conversations.unblock(tx, key, actor, account)
        case "approve":
            await conversations.approve(tx, key, actor, hub.relay.figures, account)
        case "deny":
            await conversations.deny(tx, key, actor, account)
        case _:
            raise NotFound("there is no such deed")


async def meant(tx: Tx, account: str | None) -> UUID | None:
    """The account somebody wrote, by its id or its name; one that is not there has nothing."""
    if account is None:
        return None
    try:
        return UUID(account)
    except ValueError:
        pass
    try:
        return (await accounts.find(tx, account)).id
    except NotFound:
        return NOBODY


def raw(request: Request, name: str) -> str:
    """What stands in the address, as it is: a key may end with a blank."""
    return request.query_params.get(name, "").replace("\0", "")


PAGES = (
    Look(f"{ROOM}/conversations", every),
    Look(TALK, one),
    Deed(f"{TALK}/export", take_along),
    Deed(f"{TALK}/erase", forget),
    Deed(f"{TALK}/{{deed}}", change),
)
