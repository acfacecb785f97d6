"""The console's gate: who may see a page, who may do something there, and what they are told when they may not."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.api.errors import AGAIN, headers_for, status_of
from pabal.api.threshold import spoken_path
from pabal.api.visit import Visit
from pabal.console import me, sessions
from pabal.console.pages import carried, form, note
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Refused
from pabal.core.log import get_logger
from pabal.notifications.people import Person
from pabal.operators.operators import Role, Session
from pabal.wiring import Hub

log = get_logger()

Form = ImmutableMultiDict[str, str]
Answer = Callable[[Request], Awaitable[Response]]
Show = Callable[[Hub, Request, Session], Awaitable[Response]]
Do = Callable[[Hub, Request, Session, Form], Awaitable[Response]]
ShowAnybody = Callable[[Hub, Request], Awaitable[Response]]
ShowPerson = Callable[[Hub, Request, Person], Awaitable[Response]]


class Note(Protocol):
    """How a page that only says something is made, in the dress of those it is for."""

    def __call__(self, request: Request, says: str, status: int, because: str = "") -> Response: ...


@dataclass(frozen=True, slots=True)
class Look:
    """A page for operators: to look at."""

    path: str
    show: Show

    def route(self, hub: Hub) -> BaseRoute:
        return Route(self.path, keeping(hub, for_people(self._guarded(hub))), methods=["GET"])

    def _guarded(self, hub: Hub) -> Answer:
        async def answer(request: Request) -> Response:
            session = await sessions.who(hub, request)
            return (
                RedirectResponse("/console/login", 303) if session is None else await self.show(hub, request, session)
            )

        return answer


@dataclass(frozen=True, slots=True)
class Deed:
    """Something an admin does from a page: a form of ours, sent from a page of ours."""

    path: str
    do: Do
    by: Role = Role.ADMIN

    def route(self, hub: Hub) -> BaseRoute:
        return Route(self.path, keeping(hub, for_people(self._guarded(hub))), methods=["POST"])

    def _guarded(self, hub: Hub) -> Answer:
        async def answer(request: Request) -> Response:
            session = await sessions.who(hub, request)
            if session is None:
                return RedirectResponse("/console/login", 303)
            given = await form(request)
            if not sessions.ours(hub, request) or not sessions.same(given.get("csrf", ""), session.csrf.hex()):
                return note(request, "stale form", 403)
            if self.by == Role.ADMIN and session.role != Role.ADMIN:
                return note(request, "admins only", 403)
            return carried(hub, await self.do(hub, request, session, given))

        return answer


def keeping(hub: Hub, page: Answer) -> Answer:
    """A page of a session whose cookie may have changed: the browser is given the new one with whatever it is told."""

    async def answer(request: Request) -> Response:
        made = await page(request)
        sessions.renew(hub, request, made)
        return made

    return answer


def opened(hub: Hub, page: ShowAnybody, says: Note = note) -> Answer:
    async def answer(request: Request) -> Response:
        return await page(hub, request)

    return for_people(answer, says)


def own(hub: Hub, page: ShowPerson) -> Answer:
    """A page for the person it is about."""

    async def answer(request: Request) -> Response:
        visitor = await me.known(hub, request)
        return await page(hub, request, visitor) if isinstance(visitor, Person) else visitor

    return for_people(answer, me.note)


def for_people(page: Answer, says: Note = note) -> Answer:
    """What a program would get as a problem in JSON, a person gets as a page."""

    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except AGAIN as error:
            away = says(request, "database away", 503)
            away.headers.update(headers_for(error))
            return away
        except NotFound:
            return says(request, "no such page", 404)
        except Refused as error:
            return says(request, "refused", status_of(type(error)), because=str(error))
        except ClientDisconnect:
            raise
        except Exception:  # nobody sees our insides: only where whoever runs the hub finds them
            visit: Visit = request.state.visit
            log.exception("request failed", method=request.method, path=spoken_path(request.scope))
            return says(request, "failed inside", 500, because=visit.id)

    return answer


def by(request: Request, session: Session) -> Actor:
    """The operator, as the audit log names them."""
    visit: Visit = request.state.visit
    return visit.by(f"operator:{session.name}")
