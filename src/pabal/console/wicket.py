"""The small gates beside the console's: pages for a bot's owner and for a chat's user, who come with a cookie each.

A cookie comes along by itself, whoever's page sent the request. Nothing is done with it unless the browser says that
the form is from a page of ours, and the form brings the stamp that only such a page could have put there.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.api.cookie import give
from pabal.api.person import from_here
from pabal.console.gate import Answer, Form, for_people
from pabal.console.live import living
from pabal.console.pages import carried, form, page, question, turned
from pabal.core.errors import Unauthenticated
from pabal.wiring import Hub


class Visitor(Protocol):
    @property
    def stamp(self) -> str: ...


Who = TypeVar("Who", bound=Visitor)


@dataclass(frozen=True, slots=True)
class Wicket(Generic[Who]):
    """The pages under `home`: who comes through with which cookie, and what those are told who do not.

    An open page looks `every` so often, by the clock alone: bells ring for everybody, and would tell of others.
    """

    home: str
    cookie: str
    known: Callable[[Hub, Request], Awaitable[Who]]
    turned_away: Callable[[Request], Response]
    every: timedelta

    def look(self, hub: Hub, show: Callable[[Hub, Request, Who], Awaitable[Response]]) -> Answer:
        """A page to look at."""

        async def answer(request: Request) -> Response:
            try:
                visitor = await self.known(hub, request)
            except Unauthenticated:
                return self.turned_away(request)
            return await show(hub, request, visitor)

        return for_people(answer, self.note)

    def deed(self, hub: Hub, do: Callable[[Hub, Request, Who, Form], Awaitable[Response]]) -> Answer:
        """Something that is done by a form."""

        async def answer(request: Request) -> Response:
            try:
                visitor = await self.known(hub, request)
                given = await form(request)
                if not from_here(request, hub) or not same(given.get("stamp", ""), visitor.stamp):
                    return self.note(request, "stale form", 403)
                return carried(hub, await do(hub, request, visitor, given))
            except Unauthenticated:  # before, or meanwhile
                return self.turned_away(request)

        return for_people(answer, self.note)

    def opened(self, hub: Hub, show: Callable[[Hub, Request], Awaitable[Response]]) -> Answer:
        """A page for anybody; who is to be known after all is turned away there."""

        async def answer(request: Request) -> Response:
            try:
                return await show(hub, request)
            except Unauthenticated:
                return self.turned_away(request)

        return for_people(answer, self.note)

    def page(self, request: Request, template: str, *, status: int = 200, stamp: str = "", **what: Any) -> HTMLResponse:
        answer = page(request, template, status=status, home=self.home, stamp=stamp, **what)
        # Without a referrer at all a browser does not say either that a form is from a page of ours.
        answer.headers["referrer-policy"] = "same-origin"
        return answer

    def note(self, request: Request, says: str, status: int, because: str = "") -> HTMLResponse:
        """A page that only says something."""
        return self.page(request, "wicket/note.html", status=status, says=says, because=because)

    def sure(
        self, request: Request, visitor: Visitor, *, says: str, count: int, carries: Mapping[str, str], **facts: str
    ) -> HTMLResponse:
        """Ask before something is done that cannot be undone, as the console does: what, and to how many."""
        asked = question(request, ("stamp", visitor.stamp), says, count, carries, **facts)
        return self.page(
            request, "confirm.html", dress="wicket/base.html", stamp=visitor.stamp, back=self.home, **asked
        )

    async def live(self, hub: Hub, request: Request, visitor: Who) -> Response:
        """A stream of looks, for as long as its reader is let in."""

        async def let() -> bool:
            try:
                await self.known(hub, request)
            except Unauthenticated:
                return False
            return True

        return living(hub, let, visitor.stamp, seldom=self.every)

    async def missing(self, request: Request) -> Response:
        return self.note(request, "no such page", 404)

    async def language(self, hub: Hub, request: Request) -> Response:
        return turned(hub, request, self.home) if from_here(request, hub) else self.note(request, "stale form", 403)

    def welcome(self, hub: Hub, cookie: str, life: timedelta) -> Response:
        """Let somebody in: their browser keeps the cookie for these pages alone."""
        answer = RedirectResponse(self.home, 303)
        give(hub, answer, self.cookie, cookie, seconds=int(life.total_seconds()), path=self.home)
        return answer

    def farewell(self, answer: Response) -> Response:
        answer.delete_cookie(self.cookie, path=self.home)
        return answer


def stamp_of(cookie: str) -> str:
    """What the forms of one browser carry: made of its cookie, which no script and no other site can read."""
    return hashlib.sha256(f"form of {cookie}".encode()).hexdigest()


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
