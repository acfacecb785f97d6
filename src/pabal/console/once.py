"""A secret, shown once: on the answer to the very form that made it, and nowhere after."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.pages import render_page
from pabal.operators.operators import OperatorSession


def secret_page(request: Request, session: OperatorSession, title_id: str, secret: str, return_url: str) -> Response:
    """Show what nobody can look up again. `title` is a text's key, `back` where to go when it is written down."""
    return render_page(request, "once.html", session=session, title_id=title_id, secret=secret, return_url=return_url)
