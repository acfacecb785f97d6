"""How a page is made: one template, one language, nothing cached where it should not be."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jinja2
import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal import __version__
from pabal.api.bind import read_body
from pabal.api.cookie import give
from pabal.console import figures, mask
from pabal.console.agent import agent
from pabal.console.speech import spoken
from pabal.console.texts import LANGUAGE, Texts, texts_for
from pabal.console.veil import veiled
from pabal.operators.operators import Session
from pabal.wiring import Hub

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a hub that runs stays as it was started, whatever is installed meanwhile
)
FORM_LIMIT = 65_536
SAID = "pabal_said"
"""What a deed has to say, carried to the page that is shown after it."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
Saying = tuple[str, dict[str, Number]]
"""A text of ours and the numbers in it: whatever a browser brings, no word of somebody else's is said here."""
YEAR = 31_536_000

FILTERS: dict[str, Any] = {
    "count": figures.count,
    "age": figures.age,
    "moment": figures.moment,
    "masked": mask.masked,
    "short": figures.short,
    "called": figures.called,
    "agent": agent,
    "veiled": veiled,
    "spoken": spoken,
}
PAGES.filters.update(FILTERS)


def page(request: Request, template: str, *, status: int = 200, **what: object) -> HTMLResponse:
    t = texts_for(request)
    said = "" if "x-look" in request.headers else heard(request, t)  # nobody reads the top of a page fetched again
    html = PAGES.get_template(template).render(t=t, path=request.url.path, version=__version__, said=said, **what)
    answer = HTMLResponse(html, status, {"cache-control": "no-store"})
    if said:
        answer.delete_cookie(SAID, path=home_of(request.url.path))
    return answer


def note(request: Request, says: str, status: int, because: str = "") -> HTMLResponse:
    """A page that only says something: not there, away for the moment."""
    return page(request, "note.html", status=status, says=says, because=because)


def confirm(
    request: Request,
    session: Session,
    *,
    says: str,
    count: int,
    carries: Mapping[str, Any],
    back: str,
    **facts: int | str,
) -> Response:
    """Ask before something is done that cannot be undone: what, and to how many. The form comes back to its own path.

    `carries` is what the form brought; `count` goes with it, and the deed sees whether that many are still meant.
    Further `facts` are said by their names.
    """
    proof = ("csrf", session.csrf.hex())
    asked = question(request, proof, says, count, carries, **facts)
    return page(request, "confirm.html", dress="base.html", session=session, back=back, **asked)


def question(
    request: Request, proof: tuple[str, str], says: str, count: int, carries: Mapping[str, Any], **facts: int | str
) -> dict[str, Any]:
    """What a page that asks says and brings back; `proof` is what its forms show to be ours."""
    known = {name: figures.count(fact) if isinstance(fact, int) else fact for name, fact in facts.items()}
    return {
        "proof": proof,
        "says": texts_for(request)(says).format(figures.count(count), **known),
        "count": count,
        "carries": [(name, value) for name, value in pairs(carries) if name not in {proof[0], "count"}],
    }


def pairs(carries: Mapping[str, Any]) -> list[tuple[str, str]]:
    return carries.multi_items() if isinstance(carries, ImmutableMultiDict) else list(carries.items())


def confirmed(given: Mapping[str, str], count: int) -> bool:
    """Whether the number that was agreed to is the number it is."""
    return given.get("count") == str(count)


def agreed(given: Mapping[str, str]) -> bool:
    """Whether somebody was told a number and agreed, whatever it has become since.

    For deeds that protect: who is to be kept out must not be able to keep them from being done by moving the number.
    """
    return given.get("count", "").isdecimal()


class Then(RedirectResponse):
    """To a page after a deed, with something to say there, which the gate gives the browser to carry."""

    def __init__(self, where: str, says: str, numbers: dict[str, int]) -> None:
        super().__init__(where, 303)
        self.where, self.says, self.numbers = where, says, numbers


def then(where: str, says: str = "", **numbers: int) -> Response:
    """Go to a page after a deed, and say there what came of it."""
    return Then(where, says, numbers)


def carried(hub: Hub, answer: Response) -> Response:
    if isinstance(answer, Then) and answer.says:
        told = quote(msgspec.json.encode([answer.says, answer.numbers]))
        give(hub, answer, SAID, told, seconds=30, path=home_of(answer.where))
    return answer


def home_of(where: str) -> str:
    """The beginning of an address that says whose pages these are: an operator's, an owner's, a user's."""
    return f"/{urlsplit(where).path.split('/')[1]}"


def heard(request: Request, t: Texts) -> str:
    """What the deed before has to say; a cookie that makes no sense says nothing."""
    try:
        key, numbers = msgspec.json.decode(unquote(request.cookies.get(SAID, "")), type=Saying)
        return t(key).format(**numbers)
    except (msgspec.DecodeError, LookupError, ValueError):
        return ""


def turned(hub: Hub, request: Request, home: str) -> Response:
    """Turn the pages under `home` to the other language."""
    answer = RedirectResponse(home, 303)
    give(hub, answer, LANGUAGE, texts_for(request).other, seconds=YEAR, path=home)
    return answer


async def form(request: Request) -> ImmutableMultiDict[str, str]:
    """What a form of ours brings: small, urlencoded."""
    body = await read_body(request, FORM_LIMIT)
    text = body.decode("utf-8", "replace")
    return ImmutableMultiDict(
        [(name, value.replace("\0", "")) for name, value in parse_qsl(text, keep_blank_values=True)]
    )


def chosen(request: Request, *names: str) -> dict[str, str]:
    """What a list is narrowed to by the address of the page: the names it knows, and only where something is said."""
    said = {name: request.query_params.get(name, "").replace("\0", "").strip() for name in names}
    return {name: value for name, value in said.items() if value}


def link(path: str, /, **said: str | None) -> str:
    """An address with what is said in it."""
    return f"{path}?{query}" if (query := urlencode({k: v for k, v in said.items() if v})) else path


WORDS: dict[str, Any] = {"link": link}
PAGES.globals.update(WORDS)
