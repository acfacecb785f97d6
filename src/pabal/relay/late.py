"""Late answers: what a bot said after its callback died goes in front of the next thing the user is told."""

import json
from collections.abc import Sequence
from typing import Any

from pabal.relay.response import outputs_of

Object = dict[str, Any]


def in_front(late: Sequence[Object], response: Object) -> Object:
    """The response with late outputs before its own."""
    if not late:
        return response
    template: Object = response.get("template") or {}
    return response | {"template": template | {"outputs": [*late, *outputs_of(response)]}}


def written(response: Object) -> bytes:
    """A response as JSON; numbers of any length, which a bot may have put there, come out as they went in."""
    return json.dumps(response, ensure_ascii=False).encode()
