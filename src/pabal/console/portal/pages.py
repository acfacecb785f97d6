"""What an owner sees in the portal, and does there: their own users, messages, codes and token, and nobody else's."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pabal.api.pairing import place_of
from pabal.console.gate import Form
from pabal.console.pages import agreed, chosen, then
from pabal.console.portal.door import COOKIE, HOME, LOGIN, WICKET, Guest, by, enter, leave, show, stays
from pabal.console.relay.conversations import carry_out, ended_by, raw
from pabal.console.relay.messages import status_in
from pabal.console.veil import veiled
from pabal.core.base64url import encoded
from pabal.core.errors import NotFound
from pabal.limits import take
from pabal.relay import accounts, codes, conversations, messages, portal, roster
from pabal.relay.answers import answers
from pabal.relay.messages import ALL, Chosen
from pabal.wiring import Hub

PAGE = 30
FEW = 10


async def home(hub: Hub, request: Request, guest: Guest) -> Response:
    """Everything at a glance; a session nobody has paired yet waits here with its code."""
    if guest.bearer.account is None:
        return await waiting(hub, request, guest)
    account = guest.owner.account
    after = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        has = await roster.one(tx, account)
        live_codes = await roster.waiting(tx, account)
        people = await conversations.every(tx, account=account, after=after, limit=PAGE + 1)
        recent = await messages.every(tx, Chosen(account), FEW)
    people, more = people[:PAGE], people[PAGE:]
    return WICKET.page(
        request,
        "portal/home.html",
        stamp=guest.stamp,
        has=has,
        most=roster.MOST_ALONE,
        codes=live_codes,
        most_codes=codes.MOST_LIVE,
        people=people,
        following=encoded(people[-1].conversation_key.encode()) if more else None,
        later=after,
        recent=recent.items,
        by_relay_token=guest.by_relay_token,
        prefix=hub.settings.command_prefix,
    )


async def waiting(hub: Hub, request: Request, guest: Guest) -> Response:
    assert guest.bearer.session is not None
    async with hub.autocommit() as tx:
        awaited = await portal.awaited(tx, guest.bearer.session)
    return WICKET.page(
        request, "portal/waiting.html", stamp=guest.stamp, awaited=awaited, prefix=hub.settings.command_prefix
    )


async def every_message(hub: Hub, request: Request, guest: Guest) -> Response:
    """What came to this account, the newest first, with what was answered."""
    account, said = guest.owner.account, chosen(request, "status")
    if key := raw(request, "conversation"):
        said["conversation"] = key
    status, cursor = status_in(said), request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        found = await messages.every(tx, Chosen(account, key or None, status), PAGE, cursor)
        answered = await answers(tx, [each.id for each in found.items], account)
    return WICKET.page(
        request,
        "portal/messages.html",
        stamp=guest.stamp,
        rows=found.items,
        answered=answered,
        sought=said,
        statuses=ALL,
        older=found.cursor,
        later=cursor,
    )


async def one_message(hub: Hub, request: Request, guest: Guest) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        whole = await messages.show(tx, row, guest.owner.account)
    return WICKET.page(
        request,
        "portal/message.html",
        stamp=guest.stamp,
        message=whole.message,
        payload=whole.payload,
        reply=whole.reply,
    )


async def code(hub: Hub, request: Request, guest: Guest, _given: Form) -> Response:
    """Make a pairing code, as often as the door for it allows."""
    account = guest.owner.account
    async with hub.autocommit() as tx:
        await take(tx, codes.PER_MINUTE, str(account))
    async with hub.transaction() as tx:
        await codes.generate(tx, account, by(request, guest))
        await stays(tx, request, guest)
    hub.relay.figures.created.add(1)
    return then(HOME, "done code")


async def change(hub: Hub, request: Request, guest: Guest, given: Form) -> Response:
    """Connect, disconnect, keep out or let in one of their own users."""
    deed, key, account = request.path_params["deed"], given.get("key", ""), guest.owner.account
    async with hub.transaction() as tx:
        ends = await ended_by(tx, deed, key, account)
        await stays(tx, request, guest)
        if ends is not None and not agreed(given):
            return WICKET.sure(request, guest, says=f"sure {deed}", count=ends, carries=given, who=veiled(key))
        await carry_out(tx, hub, deed, key, by(request, guest), account=account)
    return then(HOME, f"done {deed}")


async def rotate(hub: Hub, request: Request, guest: Guest, given: Form) -> Response:
    """Give another relay token to whoever showed the one before; this browser stays in, every other is out."""
    account = guest.owner.account
    if not guest.by_relay_token:
        raise NotFound("a session's token cannot be rotated")
    async with hub.transaction() as tx:
        ends = await roster.toll(tx, account)
        before = await stays(tx, request, guest)
        if not agreed(given):
            return WICKET.sure(request, guest, says="sure rotate own", count=ends.codes, carries={})
        token = await accounts.rotate_token(tx, account, by(request, guest))
        await portal.go_on(tx, request.cookies.get(COOKIE, ""), before, token)
    return WICKET.page(request, "portal/once.html", stamp=guest.stamp, secret=token)


def routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route(HOME, WICKET.look(hub, home), methods=["GET"]),
        Route(LOGIN, WICKET.opened(hub, show), methods=["GET"]),
        Route(LOGIN, WICKET.opened(hub, enter), methods=["POST"]),
        Route(f"{HOME}/live", WICKET.look(hub, WICKET.live), methods=["GET"]),
        Route(f"{HOME}/messages", WICKET.look(hub, every_message), methods=["GET"]),
        Route(f"{HOME}/messages/{{id:uuid}}", WICKET.look(hub, one_message), methods=["GET"]),
        Route(f"{HOME}/code", WICKET.deed(hub, code), methods=["POST"]),
        Route(f"{HOME}/rotate", WICKET.deed(hub, rotate), methods=["POST"]),
        Route(f"{HOME}/conversation/{{deed}}", WICKET.deed(hub, change), methods=["POST"]),
        Route(f"{HOME}/leave", WICKET.deed(hub, leave), methods=["POST"]),
        Route(f"{HOME}/language", WICKET.opened(hub, WICKET.language), methods=["POST"]),
        Route(f"{HOME}/{{rest:path}}", WICKET.missing),
    ]
