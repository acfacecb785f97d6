"""Valid credentials of every kind."""

import re
from dataclasses import dataclass, field

import httpx2

from pabal.console.access.csrf import csrf_token_for
from pabal.console.access.login import OPERATOR_COOKIE
from pabal.console.chat import CHAT_COOKIE
from pabal.console.portal.login import PORTAL_COOKIE
from pabal.core.actor import Actor
from pabal.hub import Hub
from pabal.notifications.people.tokens import exchange_person_link, issue_person_link
from pabal.operators.operators import Role
from pabal.relay.web_sessions import create_portal_session, open_chat_page
from pabal.tokens.permission import Permission
from pabal.web.auth import PERSON_COOKIE
from pabal.web.route import ErrorFormat, Route
from relay.people import RelayAccount, add_account, pair_user, send_command
from support.notifications import register_builtin_templates
from support.oauth_client import bearer, register_oauth_service
from support.operator import sign_in

PERSON = "80351110224678912"
USER = "mina-plusfriend-1"
TESTER = Actor("tester")


@dataclass(frozen=True, slots=True)
class Visitors:
    """Valid credentials of every kind."""

    token: dict[str, str] = field(repr=False)
    secret: dict[str, str] = field(repr=False)
    relay: RelayAccount
    person: dict[str, str] = field(repr=False)
    cookies: dict[str, str] = field(repr=False)
    csrf: dict[str, str] = field(repr=False)
    """The CSRF token for the forms under each path."""

    def headers_for(self, route: Route) -> dict[str, str]:
        if route.permission:
            return self.token
        if route.person_auth:
            return self.person
        if route.error_format is ErrorFormat.OAUTH:
            return self.secret
        return self.relay.bearer

    @property
    def cookie_header(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def csrf_for(self, path: str) -> str:
        return next((token for prefix, token in self.csrf.items() if path.startswith(prefix)), "")


async def create_visitors(hub: Hub, origin: str) -> Visitors:
    await register_builtin_templates(hub)
    async with httpx2.AsyncClient(base_url=origin) as web:
        shop = await register_oauth_service(hub, web, "shop", *Permission)
        token = (await shop.tokens())["access_token"]
        operator = await sign_in(hub, web, Role.ADMIN)
    owner = await add_account(hub, rate_limit=1_000_000)
    await pair_user(hub, USER, owner.account)
    [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, USER, "/code"))
    async with hub.transaction() as tx:
        chat = await open_chat_page(tx, code)
        portal = await create_portal_session(tx, owner.token, TESTER)
        person = (await issue_person_link(tx, PERSON, TESTER)).token
        person_cookie = await exchange_person_link(tx, (await issue_person_link(tx, PERSON, TESTER)).token)
    assert chat
    assert person_cookie
    return Visitors(
        bearer(token),
        shop.basic,
        owner,
        bearer(person),
        {
            OPERATOR_COOKIE: operator.token,
            PORTAL_COOKIE: portal,
            CHAT_COOKIE: chat.cookie,
            PERSON_COOKIE: person_cookie,
        },
        {
            "/console": operator.session.csrf.hex(),
            "/portal": csrf_token_for(portal),
            "/chat": csrf_token_for(chat.cookie),
        },
    )
