"""A bot's answer, held against Kakao's limits before its one callback is spent.

Kakao is lenient about what it does not know, and so are we: keys we do not know inside a kind we do pass through, and a
`null` is as good as nothing. What it is known to refuse is refused here, with the field and the limit.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

from pabal.core.errors import FieldError, Invalid
from pabal.relay.webhook.skill_response import SKILL_VERSION

MAX_OUTPUTS = 3
MAX_QUICK_REPLIES = 10
MAX_TEXT_LENGTH = 1000
MAX_ALT_TEXT_LENGTH = 50
MAX_TITLE_LENGTH = 50
MAX_DESCRIPTION_LENGTH = 230
MAX_TEXT_CARD_LENGTH, MAX_CAROUSEL_TEXT_CARD_LENGTH = 400, 128
MAX_BUTTONS, MAX_HORIZONTAL_BUTTONS = 3, 2
MAX_LABEL_LENGTH = 14
CAROUSEL_ITEM_RANGE = (2, 10)
LIST_ITEM_RANGE = (2, 5)
MAX_REPORTED_ERRORS = 10
"""Mistakes told at once; whoever makes more of them reads no further."""

JsonObject = dict[str, Any]
FieldErrors = Iterator[FieldError]


def validate_skill_response(response: object) -> JsonObject:
    """Give back a response that Kakao can take; raises Invalid with what it would refuse."""
    mistakes = [*check_skill_response(response)]
    if mistakes:
        raise Invalid(*mistakes[:MAX_REPORTED_ERRORS])
    return cast("JsonObject", response)


def list_skill_outputs(response: JsonObject) -> list[JsonObject]:
    """What of a checked response is shown in the chat."""
    template: JsonObject = response.get("template") or {}
    return template.get("outputs") or []


def check_skill_response(response: object) -> FieldErrors:
    match response:
        case dict():
            answer = cast("JsonObject", response)
        case _:
            yield FieldError("response", "is not a skill response: an object with version and template")
            return
    if answer.get("version") != SKILL_VERSION:
        yield FieldError("response.version", f'is not "{SKILL_VERSION}"' if "version" in answer else "is missing")
    for name in ("context", "data"):
        yield from check_optional_object(answer.get(name), f"response.{name}")
    template = answer.get("template")
    if template is None and answer.get("data") is None:
        yield FieldError("response.template", "is missing")
    elif template is not None:
        yield from check_skill_template(template, "response.template")


def check_skill_template(template: object, where: str) -> FieldErrors:
    match template:
        case dict():
            parts = cast("JsonObject", template)
        case _:
            yield FieldError(where, "is not an object")
            return
    yield from check_object_list(parts.get("outputs"), f"{where}.outputs", 1, MAX_OUTPUTS, check_output)
    if parts.get("quickReplies") is not None:
        yield from check_object_list(parts["quickReplies"], f"{where}.quickReplies", 0, MAX_QUICK_REPLIES, check_label)


def check_output(output: JsonObject, where: str) -> FieldErrors:
    kinds = [kind for kind, content in output.items() if content is not None]
    if len(kinds) != 1:
        yield FieldError(where, f"has {', '.join(map(short_repr, kinds)) or 'no kind'} where one kind belongs")
    elif kinds[0] not in OUTPUT_CHECKS:
        yield FieldError(where, f"has the kind {short_repr(kinds[0])}, which is none of {', '.join(OUTPUT_CHECKS)}")
    else:
        yield from check_object(output[kinds[0]], f"{where}.{kinds[0]}", OUTPUT_CHECKS[kinds[0]])


# Kinds


def check_simple_text(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_field(content, "text", where, MAX_TEXT_LENGTH, required=True)


def check_simple_image(content: JsonObject, where: str) -> FieldErrors:
    yield from check_image(content, where)


def check_text_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_card_length(content, where, MAX_TEXT_CARD_LENGTH)


def check_carousel_text_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_card_length(content, where, MAX_CAROUSEL_TEXT_CARD_LENGTH)


def check_text_card_length(content: JsonObject, where: str, max_length: int) -> FieldErrors:
    yield from check_card(content, where)
    parts = [part for name in ("title", "description") if isinstance(part := content.get(name), str)]
    if not any(part.strip() for part in parts):
        yield FieldError(where, "has neither title nor description")
    if (length := sum(map(len, parts))) > max_length:
        yield FieldError(where, f"has {length} characters in title and description; Kakao takes {max_length}")


def check_basic_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_card(content, where)
    yield from check_text_field(content, "description", where, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnail") is not None:
        yield from check_object(content["thumbnail"], f"{where}.thumbnail", check_image)


def check_commerce_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_card(content, where)
    yield from check_text_field(content, "description", where, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnails") is not None:
        yield from check_object_list(content["thumbnails"], f"{where}.thumbnails", 1, 1, check_image)


def check_list_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_card(content, where)
    yield from check_object(content.get("header"), f"{where}.header", check_title)
    yield from check_object_list(content.get("items"), f"{where}.items", *LIST_ITEM_RANGE, check_title)


def check_item_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_card(content, where)
    yield from check_text_field(content, "description", where, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnail") is not None:
        yield from check_object(content["thumbnail"], f"{where}.thumbnail", check_image)


def check_carousel(content: JsonObject, where: str) -> FieldErrors:
    kind = content.get("type")
    if not isinstance(kind, str) or kind not in CAROUSEL_CHECKS:
        yield FieldError(f"{where}.type", f"is {short_repr(kind)}, which is none of {', '.join(CAROUSEL_CHECKS)}")
        return
    yield from check_object_list(content.get("items"), f"{where}.items", *CAROUSEL_ITEM_RANGE, CAROUSEL_CHECKS[kind])


CAROUSEL_CHECKS: dict[str, Callable[[JsonObject, str], FieldErrors]] = {
    "textCard": check_carousel_text_card,
    "basicCard": check_basic_card,
    "commerceCard": check_commerce_card,
    "listCard": check_list_card,
    "itemCard": check_item_card,
}
OUTPUT_CHECKS: dict[str, Callable[[JsonObject, str], FieldErrors]] = {
    "simpleText": check_simple_text,
    "simpleImage": check_simple_image,
    **CAROUSEL_CHECKS,
    "textCard": check_text_card,
    "carousel": check_carousel,
}


# Parts of kinds


def check_card(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_field(content, "title", where, MAX_TITLE_LENGTH)
    if content.get("buttons") is not None:
        abreast = content.get("buttonLayout") == "horizontal"
        most = MAX_HORIZONTAL_BUTTONS if abreast else MAX_BUTTONS
        yield from check_object_list(content["buttons"], f"{where}.buttons", 0, most, check_label)


def check_title(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_field(content, "title", where, MAX_TITLE_LENGTH, required=True)


def check_label(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_field(content, "label", where, MAX_LABEL_LENGTH, required=True)


def check_image(content: JsonObject, where: str) -> FieldErrors:
    yield from check_text_field(content, "imageUrl", where, required=True)
    yield from check_text_field(content, "altText", where, MAX_ALT_TEXT_LENGTH)


def check_text_field(
    content: JsonObject, name: str, where: str, max_length: int | None = None, *, required: bool = False
) -> FieldErrors:
    """A string of so many characters, counted as people count them and not as bytes."""
    text = content.get(name)
    match text:
        case str() if required and not text.strip():
            yield FieldError(f"{where}.{name}", "is empty")
        case str() if max_length is not None and len(text) > max_length:
            yield FieldError(f"{where}.{name}", f"has {len(text)} characters; Kakao takes {max_length}")
        case None if required:
            yield FieldError(f"{where}.{name}", "is missing")
        case str() | None:
            return
        case _:
            yield FieldError(f"{where}.{name}", "is not a string")


def check_object_list(
    content: object, where: str, min_items: int, max_items: int, check_item: Callable[[JsonObject, str], FieldErrors]
) -> FieldErrors:
    """A list of so many objects."""
    match content:
        case list():
            items = cast("list[object]", content)
        case None:
            yield FieldError(where, "is missing")
            return
        case _:
            yield FieldError(where, "is not a list")
            return
    many = len(items)
    if not min_items <= many <= max_items:
        allowed = (
            f"{min_items}"
            if min_items == max_items
            else f"at most {max_items}"
            if min_items == 0
            else f"{min_items} to {max_items}"
        )
        yield FieldError(where, f"has {many}; Kakao takes {allowed}")
        return
    for place, item in enumerate(items):
        yield from check_object(item, f"{where}[{place}]", check_item)


def check_object(content: object, where: str, check: Callable[[JsonObject, str], FieldErrors]) -> FieldErrors:
    match content:
        case dict():
            yield from check(cast("JsonObject", content), where)
        case None:
            yield FieldError(where, "is missing")
        case _:
            yield FieldError(where, "is not an object")


def check_optional_object(content: object, where: str) -> FieldErrors:
    if content is not None and not isinstance(content, dict):
        yield FieldError(where, "is not an object")


def short_repr(word: object) -> str:
    """Somebody's word in our sentence: short."""
    return repr(word)[:40]
