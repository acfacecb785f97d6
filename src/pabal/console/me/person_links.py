"""Link a Discord account on the page of a registered user (/me), and undo the link."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.audit.pseudonym import person_pseudonym
from pabal.console.i18n import translator_for
from pabal.console.me.person import PERSON_PATH, person_error_page, with_referrer_policy
from pabal.console.pages import read_form, read_query, render_page, request_context
from pabal.core.errors import NotFound
from pabal.hub import Hub
from pabal.notifications.people.links import confirm_link_request, unlink_account
from pabal.notifications.people.tokens import Person


async def request_link_action(hub: Hub, request: Request, visitor: Person) -> Response:
    """Send a one-time link to the Discord account that the visitor names."""
    fields = await read_form(request)
    language = translator_for(request).language
    await hub.link_requester.request_link(visitor, fields.get("discord_id", "").strip(), language)
    return RedirectResponse(f"{PERSON_PATH}?saved=link", 303)


async def confirm_link_page(_hub: Hub, request: Request, visitor: Person) -> Response:
    """Ask for a click first, because link previews fetch the page as well."""
    code = read_query(request, "code") or ""
    return with_referrer_policy(render_page(request, "person/link.html", person=visitor, code=code))


async def confirm_link_action(hub: Hub, request: Request, visitor: Person) -> Response:
    fields = await read_form(request)
    actor = request_context(request).actor(person_pseudonym(visitor.id))
    try:
        async with hub.transaction() as tx:
            await confirm_link_request(tx, visitor, fields.get("code", ""), actor)
    except NotFound:
        return person_error_page(request, "code_expired", 404)
    return RedirectResponse(PERSON_PATH, 303)


async def unlink_own_account_action(hub: Hub, request: Request, visitor: Person) -> Response:
    """Undo the link. The sessions of the registered user end, so this page asks to sign in again."""
    actor = request_context(request).actor(person_pseudonym(visitor.id))
    async with hub.transaction() as tx:
        await unlink_account(tx, visitor.id, actor)
    return RedirectResponse(PERSON_PATH, 303)
