"""Fit a bot's response into Kakao's limits where that loses nothing.

Clients send an answer as one text of any length and only log a refusal, so the user would get no answer at all.
"""

import re
from collections.abc import Iterator
from typing import cast

from pabal.core.json_object import JsonObject
from pabal.relay.reply.recorded import MAX_FURTHER_REPLIES
from pabal.relay.reply.validate import MAX_LABEL_LENGTH, MAX_OUTPUTS, MAX_TEXT_LENGTH
from pabal.relay.webhook.skill_response import SKILL_VERSION

MAX_SPLIT_LENGTH = (MAX_OUTPUTS + MAX_FURTHER_REPLIES) * MAX_TEXT_LENGTH // 2
"""Longer texts are refused. A part is longer than half of a bubble, so that all parts can be sent or kept."""
BREAKS = (re.compile(r"\n\s*"), re.compile(r"[.!?\u3002\u2026][\"'\u201d\u2019)\]]*\s+"), re.compile(r"\s+"))
"""Where a text may be split, the best places first: ends of lines, of sentences, of words."""


def fit_skill_response(response: object) -> tuple[object, list[JsonObject]]:
    """The response with long texts split into bubbles, and one further response for each bubble beyond the third.

    A string becomes a response with this text. Long labels of quick replies are shortened. Other limits are left to
    the validation. A response that fits is returned as it is.
    """
    if isinstance(response, str):
        return fit_skill_response(text_skill_response(response))
    fields = json_object_of(response)
    template = json_object_of(fields.get("template"))
    changes: JsonObject = {}
    outputs, quick_replies = json_list_of(template.get("outputs")), json_list_of(template.get("quickReplies"))
    fitted = [part for output in outputs for part in split_output(output)]
    is_split = len(outputs) <= MAX_OUTPUTS and len(outputs) < len(fitted) <= MAX_OUTPUTS + MAX_FURTHER_REPLIES
    if is_split:
        changes["outputs"] = fitted[:MAX_OUTPUTS]
    if any(map(has_long_label, quick_replies)):
        changes["quickReplies"] = [*map(shorten_label, quick_replies)]
    if not changes:
        return response, []
    further = [outputs_response(output) for output in fitted[MAX_OUTPUTS:]] if is_split else []
    return fields | {"template": template | changes}, further


def json_object_of(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def json_list_of(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def text_skill_response(text: str) -> JsonObject:
    return outputs_response({"simpleText": {"text": text}})


def outputs_response(output: object) -> JsonObject:
    return {"version": SKILL_VERSION, "template": {"outputs": [output]}}


def split_output(output: object) -> list[object]:
    match output:
        case {"simpleText": {"text": str() as text}} if MAX_TEXT_LENGTH < len(text) <= MAX_SPLIT_LENGTH:
            fields = cast("JsonObject", output)
            return [fields | {"simpleText": fields["simpleText"] | {"text": part}} for part in split_text(text)]
        case _:
            return [output]


def split_text(text: str) -> Iterator[str]:
    """Parts of at most a bubble's length. White space between two parts is dropped."""
    rest = text.strip()
    while len(rest) > MAX_TEXT_LENGTH:
        head, rest = split_once(rest)
        yield head
    yield rest


def split_once(text: str) -> tuple[str, str]:
    """Split before the limit at the last end of a line, else of a sentence, else of a word, else at the limit."""
    for pattern in BREAKS:
        ends = [match.end() for match in pattern.finditer(text, MAX_TEXT_LENGTH // 2, MAX_TEXT_LENGTH + 1)]
        if ends:
            return text[: ends[-1]].rstrip(), text[ends[-1] :].lstrip()
    return text[:MAX_TEXT_LENGTH], text[MAX_TEXT_LENGTH:]


def has_long_label(reply: object) -> bool:
    match reply:
        case {"label": str() as label}:
            return len(label) > MAX_LABEL_LENGTH
        case _:
            return False


def shorten_label(reply: object) -> object:
    """A quick reply that shows a shorter label and still sends what it would have sent."""
    if not has_long_label(reply):
        return reply
    fields = cast("JsonObject", reply)
    label: str = fields["label"]
    sent = {"messageText": label} if fields.get("action") == "message" and not fields.get("messageText") else {}
    return fields | {"label": label[: MAX_LABEL_LENGTH - 1] + "…"} | sent
