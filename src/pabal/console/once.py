"""A secret, shown once: on the answer to the very form that made it, and nowhere after."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.pages import page
from pabal.operators.operators import Session


def once(request: Request, session: Session, title: str, secret: str, back: str) -> Response:
    """Show what nobody can look up again. `title` is a text's key, `back` where to go when it is written down."""
    return page(request, "once.html", session=session, title=title, secret=secret, back=back)
