"""What the hub itself says to Kakao: skill responses of version 2.0."""

from collections.abc import Sequence
from typing import Any

SkillResponseDict = dict[str, Any]
SKILL_VERSION = "2.0"


def text_response(*texts: str, quick_replies: Sequence[str] = ()) -> SkillResponseDict:
    """An answer on the spot. `quick` are words the user may send by touching them."""
    template: SkillResponseDict = {"outputs": [{"simpleText": {"text": text}} for text in texts]}
    if quick_replies:
        template["quickReplies"] = [{"label": word, "action": "message", "messageText": word} for word in quick_replies]
    return {"version": SKILL_VERSION, "template": template}


def callback_response(text: str | None) -> SkillResponseDict:
    """The answer will come through the callback; `text` is shown meanwhile."""
    answer: SkillResponseDict = {"version": SKILL_VERSION, "useCallback": True}
    return answer | {"data": {"text": text}} if text else answer
