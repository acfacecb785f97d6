"""Late answers: what a bot said after its callback died goes in front of the next thing the user is told."""

import json
from collections.abc import Sequence
from typing import Any

from pabal.relay.response import list_skill_outputs

SkillObject = dict[str, Any]


def prepend_late_outputs(late_outputs: Sequence[SkillObject], response: SkillObject) -> SkillObject:
    """The response with late outputs before its own."""
    if not late_outputs:
        return response
    template: SkillObject = response.get("template") or {}
    return response | {"template": template | {"outputs": [*late_outputs, *list_skill_outputs(response)]}}


def encode_skill_response(response: SkillObject) -> bytes:
    """A response as JSON; numbers of any length, which a bot may have put there, come out as they went in."""
    return json.dumps(response, ensure_ascii=False).encode()
