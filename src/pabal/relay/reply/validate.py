"""Validate a bot's skill response against Kakao's limits, before its only callback is spent.

Kakao ignores unknown keys and treats `null` as absent, and so does this. What Kakao is known to refuse is refused here,
with the field and the limit.
"""

from collections.abc import Callable, Iterator
from typing import cast

from pabal.core.errors import FieldError, Invalid
from pabal.core.json_object import JsonObject
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
"""Errors reported at once."""

FieldErrors = Iterator[FieldError]


def validate_skill_response(response: object) -> JsonObject:
    """Return the response if Kakao accepts it; raise Invalid with the fields that it would refuse."""
    errors = [*check_skill_response(response)]
    if errors:
        raise Invalid(*errors[:MAX_REPORTED_ERRORS])
    return cast("JsonObject", response)


def list_skill_outputs(response: JsonObject) -> list[JsonObject]:
    """The outputs of a validated response."""
    template: JsonObject = response.get("template") or {}
    return template.get("outputs") or []


def check_skill_response(response: object) -> FieldErrors:
    match response:
        case dict():
            skill_response = cast("JsonObject", response)
        case _:
            yield FieldError("response", "is neither a text nor a skill response, an object with version and template")
            return
    if skill_response.get("version") != SKILL_VERSION:
        yield FieldError(
            "response.version", f'is not "{SKILL_VERSION}"' if "version" in skill_response else "is missing"
        )
    for name in ("context", "data"):
        yield from check_optional_object(skill_response.get(name), f"response.{name}")
    template = skill_response.get("template")
    if template is None and skill_response.get("data") is None:
        yield FieldError("response.template", "is missing")
    elif template is not None:
        yield from check_skill_template(template, "response.template")


def check_skill_template(template: object, path: str) -> FieldErrors:
    match template:
        case dict():
            parts = cast("JsonObject", template)
        case _:
            yield FieldError(path, "is not an object")
            return
    yield from check_object_list(parts.get("outputs"), f"{path}.outputs", 1, MAX_OUTPUTS, check_output)
    if parts.get("quickReplies") is not None:
        yield from check_object_list(parts["quickReplies"], f"{path}.quickReplies", 0, MAX_QUICK_REPLIES, check_label)


def check_output(output: JsonObject, path: str) -> FieldErrors:
    kinds = [kind for kind, content in output.items() if content is not None]
    if len(kinds) != 1:
        yield FieldError(path, f"has {', '.join(map(short_repr, kinds)) or 'no kind'}; exactly one kind is allowed")
    elif kinds[0] not in OUTPUT_CHECKS:
        yield FieldError(path, f"has the unknown kind {short_repr(kinds[0])}; use one of {', '.join(OUTPUT_CHECKS)}")
    else:
        yield from check_object(output[kinds[0]], f"{path}.{kinds[0]}", OUTPUT_CHECKS[kinds[0]])


# Output kinds


def check_simple_text(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_field(content, "text", path, MAX_TEXT_LENGTH, required=True)


def check_simple_image(content: JsonObject, path: str) -> FieldErrors:
    yield from check_image(content, path)


def check_text_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_card_length(content, path, MAX_TEXT_CARD_LENGTH)


def check_carousel_text_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_card_length(content, path, MAX_CAROUSEL_TEXT_CARD_LENGTH)


def check_text_card_length(content: JsonObject, path: str, max_length: int) -> FieldErrors:
    yield from check_card(content, path)
    parts = [part for name in ("title", "description") if isinstance(part := content.get(name), str)]
    if not any(part.strip() for part in parts):
        yield FieldError(path, "has neither title nor description")
    if (length := sum(map(len, parts))) > max_length:
        yield FieldError(path, f"has {length} characters in title and description; Kakao allows {max_length}")


def check_basic_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_card(content, path)
    yield from check_text_field(content, "description", path, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnail") is not None:
        yield from check_object(content["thumbnail"], f"{path}.thumbnail", check_image)


def check_commerce_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_card(content, path)
    yield from check_text_field(content, "description", path, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnails") is not None:
        yield from check_object_list(content["thumbnails"], f"{path}.thumbnails", 1, 1, check_image)


def check_list_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_card(content, path)
    yield from check_object(content.get("header"), f"{path}.header", check_title)
    yield from check_object_list(content.get("items"), f"{path}.items", *LIST_ITEM_RANGE, check_title)


def check_item_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_card(content, path)
    yield from check_text_field(content, "description", path, MAX_DESCRIPTION_LENGTH)
    if content.get("thumbnail") is not None:
        yield from check_object(content["thumbnail"], f"{path}.thumbnail", check_image)


def check_carousel(content: JsonObject, path: str) -> FieldErrors:
    kind = content.get("type")
    if not isinstance(kind, str) or kind not in CAROUSEL_CHECKS:
        yield FieldError(f"{path}.type", f"is {short_repr(kind)}; use one of {', '.join(CAROUSEL_CHECKS)}")
        return
    yield from check_object_list(content.get("items"), f"{path}.items", *CAROUSEL_ITEM_RANGE, CAROUSEL_CHECKS[kind])


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


# Shared parts


def check_card(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_field(content, "title", path, MAX_TITLE_LENGTH)
    if content.get("buttons") is not None:
        is_horizontal = content.get("buttonLayout") == "horizontal"
        max_buttons = MAX_HORIZONTAL_BUTTONS if is_horizontal else MAX_BUTTONS
        yield from check_object_list(content["buttons"], f"{path}.buttons", 0, max_buttons, check_label)


def check_title(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_field(content, "title", path, MAX_TITLE_LENGTH, required=True)


def check_label(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_field(content, "label", path, MAX_LABEL_LENGTH, required=True)


def check_image(content: JsonObject, path: str) -> FieldErrors:
    yield from check_text_field(content, "imageUrl", path, required=True)
    yield from check_text_field(content, "altText", path, MAX_ALT_TEXT_LENGTH)


def check_text_field(
    content: JsonObject, name: str, path: str, max_length: int | None = None, *, required: bool = False
) -> FieldErrors:
    """Check a string. Its length is counted in characters, not bytes."""
    text = content.get(name)
    match text:
        case str() if required and not text.strip():
            yield FieldError(f"{path}.{name}", "is empty")
        case str() if max_length is not None and len(text) > max_length:
            yield FieldError(f"{path}.{name}", f"has {len(text)} characters; Kakao allows {max_length}")
        case None if required:
            yield FieldError(f"{path}.{name}", "is missing")
        case str() | None:
            return
        case _:
            yield FieldError(f"{path}.{name}", "is not a string")


def check_object_list(
    content: object, path: str, min_items: int, max_items: int, check_item: Callable[[JsonObject, str], FieldErrors]
) -> FieldErrors:
    """Check a list of objects and its length."""
    match content:
        case list():
            items = cast("list[object]", content)
        case None:
            yield FieldError(path, "is missing")
            return
        case _:
            yield FieldError(path, "is not a list")
            return
    if not min_items <= len(items) <= max_items:
        allowed = (
            f"{min_items}"
            if min_items == max_items
            else f"at most {max_items}"
            if min_items == 0
            else f"{min_items} to {max_items}"
        )
        yield FieldError(path, f"has {len(items)} items; Kakao allows {allowed}")
        return
    for index, item in enumerate(items):
        yield from check_object(item, f"{path}[{index}]", check_item)


def check_object(content: object, path: str, check: Callable[[JsonObject, str], FieldErrors]) -> FieldErrors:
    match content:
        case dict():
            yield from check(cast("JsonObject", content), path)
        case None:
            yield FieldError(path, "is missing")
        case _:
            yield FieldError(path, "is not an object")


def check_optional_object(content: object, path: str) -> FieldErrors:
    if content is not None and not isinstance(content, dict):
        yield FieldError(path, "is not an object")


def short_repr(value: object) -> str:
    """A bot's value for an error text, cut short."""
    return repr(value)[:40]
