"""What the token commands print."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from rich.text import Text

from pabal.cli.output import local_time, print_json, print_table, print_text, stdout_console
from pabal.core.errors import Invalid
from pabal.tokens.explain import TokenInspection
from pabal.tokens.issuer import TokenPair
from pabal.tokens.permission import format_scope
from pabal.tokens.verify import TokenState


def print_token_pair(pair: TokenPair, *, json: bool) -> None:
    from pabal.api.oauth import token_pair_view

    fields: dict[str, Any] = msgspec.to_builtins(token_pair_view(pair)) | {"family": pair.family_id}
    if json:
        print_json(fields)
        return
    for name, value in fields.items():
        print_text(f"{name:<15}{value}")
    print_text("The tokens are shown only once.")


def inspection_json(inspection: TokenInspection, kind: str) -> dict[str, Any]:
    token = inspection.token
    details = (
        None
        if token is None
        else {
            "id": token.id,
            "family": token.family_id,
            "service": token.service,
            "scope": format_scope(token.permissions),
            "created_at": token.created_at,
            "expires_at": token.effective_expiry,
        }
    )
    return {
        "good": inspection.is_valid,
        "why": inspection.problems,
        "kind": kind,
        "token": details,
        "claims": inspection.claims,
    }


def print_inspection(inspection: TokenInspection, kind: str) -> None:
    if inspection.is_valid:
        stdout_console.print(Text("valid", "green"))
    for problem in inspection.problems:
        stdout_console.print(Text.assemble(("invalid", "red"), f": {problem}"))
    if token := inspection.token:
        print_table(
            ("token", kind),
            [
                ("service", token.service),
                ("scope", format_scope(token.permissions)),
                ("id", token.id),
                ("family", token.family_id),
                ("issued", local_time(token.created_at)),
                ("expires", local_time(token.effective_expiry)),
            ],
        )
    if inspection.claims:
        print_table(("claim", ""), [*msgspec.structs.asdict(inspection.claims).items()])


def token_json(token: TokenState) -> dict[str, Any]:
    return {
        "id": token.id,
        "family": token.family_id,
        "service": token.service,
        "scope": format_scope(token.permissions),
        "good": token.is_valid,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }


def parse_token_cursor(cursor: str | None) -> tuple[datetime, UUID] | None:
    """Parse a cursor: issue time and id of the last token of the page."""
    if cursor is None:
        return None
    at, _, row = cursor.partition("/")
    try:
        return datetime.fromisoformat(at), UUID(row)
    except ValueError:
        raise Invalid.of_field("cursor", "is not a cursor of this list") from None
