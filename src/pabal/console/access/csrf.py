"""Protection against cross-site request forgery, for every form of the console, the portal and the chat page.

A form carries a token that only a page of ours can contain, and the browser must not report that another site sent it.
"""

import hashlib
import hmac
from collections.abc import Mapping

from markupsafe import Markup
from starlette.requests import Request

from pabal.hub import Hub
from pabal.web.origin import is_same_origin

CSRF_FIELD = "csrf_token"


def is_trusted_form(
    hub: Hub, request: Request, fields: Mapping[str, str], token: str, *, require_origin: bool = False
) -> bool:
    """Check where a form comes from and the token it carries.

    With `require_origin` the browser has to name our origin. Without, a browser that names none is trusted by the
    token alone.
    """
    if not token or not (is_same_origin(request, hub) if require_origin else is_not_cross_site(hub, request)):
        return False
    return hmac.compare_digest(fields.get(CSRF_FIELD, "").encode(), token.encode())


def is_not_cross_site(hub: Hub, request: Request) -> bool:
    """Return whether the browser names our origin, or none at all."""
    names_no_origin = request.headers.get("origin", "null") == "null" and "sec-fetch-site" not in request.headers
    return names_no_origin or is_same_origin(request, hub)


def csrf_token_for(cookie: str) -> str:
    """Derive the token for the forms of one browser from its cookie, which neither scripts nor other sites can read."""
    return hashlib.sha256(f"form of {cookie}".encode()).hexdigest()


def csrf_input(token: str) -> Markup:
    """Render the hidden field of a form."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, token)
