"""What the hub itself says to Kakao: skill responses of version 2.0."""

from collections.abc import Sequence
from typing import Any

Skill = dict[str, Any]
VERSION = "2.0"


def said(*texts: str, quick: Sequence[str] = ()) -> Skill:
    """An answer on the spot. `quick` are words the user may send by touching them."""
    template: Skill = {"outputs": [{"simpleText": {"text": text}} for text in texts]}
    if quick:
        template["quickReplies"] = [{"label": word, "action": "message", "messageText": word} for word in quick]
    return {"version": VERSION, "template": template}


def awaited(text: str | None) -> Skill:
    """The answer will come through the callback; `text` is shown meanwhile."""
    answer: Skill = {"version": VERSION, "useCallback": True}
    return answer | {"data": {"text": text}} if text else answer
