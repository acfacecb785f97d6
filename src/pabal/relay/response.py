"""A bot's answer, held against Kakao's limits before its one callback is spent.

Kakao is lenient about what it does not know, and so are we: keys we do not know inside a kind we do pass through, and a
`null` is as good as nothing. What it is known to refuse is refused here, with the field and the limit.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

from pabal.core.errors import Invalid, Mistake
from pabal.relay.skill import VERSION

MOST_OUTPUTS = 3
MOST_QUICK_REPLIES = 10
MOST_TEXT = 1000
MOST_ALT_TEXT = 50
MOST_TITLE = 50
MOST_DESCRIPTION = 230
MOST_TEXT_CARD, MOST_TEXT_CARD_IN_CAROUSEL = 400, 128
MOST_BUTTONS, MOST_BUTTONS_ABREAST = 3, 2
MOST_LABEL = 14
CAROUSEL = (2, 10)
LIST_ITEMS = (2, 5)
MOST_TOLD = 10
"""Mistakes told at once; whoever makes more of them reads no further."""

Object = dict[str, Any]
Mistakes = Iterator[Mistake]


def check(response: object) -> Object:
    """Give back a response that Kakao can take; raises Invalid with what it would refuse."""
    mistakes = [*whole(response)]
    if mistakes:
        raise Invalid(*mistakes[:MOST_TOLD])
    return cast("Object", response)


def outputs_of(response: Object) -> list[Object]:
    """What of a checked response is shown in the chat."""
    template: Object = response.get("template") or {}
    return template.get("outputs") or []


def whole(response: object) -> Mistakes:
    match response:
        case dict():
            answer = cast("Object", response)
        case _:
            yield Mistake("response", "is not a skill response: an object with version and template")
            return
    if answer.get("version") != VERSION:
        yield Mistake("response.version", f'is not "{VERSION}"' if "version" in answer else "is missing")
    for name in ("context", "data"):
        yield from an_object(answer.get(name), f"response.{name}")
    template = answer.get("template")
    if template is None and answer.get("data") is None:
        yield Mistake("response.template", "is missing")
    elif template is not None:
        yield from a_template(template, "response.template")


def a_template(template: object, where: str) -> Mistakes:
    match template:
        case dict():
            parts = cast("Object", template)
        case _:
            yield Mistake(where, "is not an object")
            return
    yield from several(parts.get("outputs"), f"{where}.outputs", 1, MOST_OUTPUTS, an_output)
    if parts.get("quickReplies") is not None:
        yield from several(parts["quickReplies"], f"{where}.quickReplies", 0, MOST_QUICK_REPLIES, labelled)


def an_output(output: Object, where: str) -> Mistakes:
    kinds = [kind for kind, content in output.items() if content is not None]
    if len(kinds) != 1:
        yield Mistake(where, f"has {', '.join(map(shown, kinds)) or 'no kind'} where one kind belongs")
    elif kinds[0] not in KINDS:
        yield Mistake(where, f"has the kind {shown(kinds[0])}, which is none of {', '.join(KINDS)}")
    else:
        yield from each_object(output[kinds[0]], f"{where}.{kinds[0]}", KINDS[kinds[0]])


# Kinds


def simple_text(content: Object, where: str) -> Mistakes:
    yield from a_text(content, "text", where, MOST_TEXT, needed=True)


def simple_image(content: Object, where: str) -> Mistakes:
    yield from an_image(content, where)


def text_card(content: Object, where: str) -> Mistakes:
    yield from a_text_card(content, where, MOST_TEXT_CARD)


def text_card_in_carousel(content: Object, where: str) -> Mistakes:
    yield from a_text_card(content, where, MOST_TEXT_CARD_IN_CAROUSEL)


def a_text_card(content: Object, where: str, most: int) -> Mistakes:
    yield from a_card(content, where)
    parts = [part for name in ("title", "description") if isinstance(part := content.get(name), str)]
    if not any(part.strip() for part in parts):
        yield Mistake(where, "has neither title nor description")
    if (length := sum(map(len, parts))) > most:
        yield Mistake(where, f"has {length} characters in title and description; Kakao takes {most}")


def basic_card(content: Object, where: str) -> Mistakes:
    yield from a_card(content, where)
    yield from a_text(content, "description", where, MOST_DESCRIPTION)
    if content.get("thumbnail") is not None:
        yield from each_object(content["thumbnail"], f"{where}.thumbnail", an_image)


def commerce_card(content: Object, where: str) -> Mistakes:
    yield from a_card(content, where)
    yield from a_text(content, "description", where, MOST_DESCRIPTION)
    if content.get("thumbnails") is not None:
        yield from several(content["thumbnails"], f"{where}.thumbnails", 1, 1, an_image)


def list_card(content: Object, where: str) -> Mistakes:
    yield from a_card(content, where)
    yield from each_object(content.get("header"), f"{where}.header", titled)
    yield from several(content.get("items"), f"{where}.items", *LIST_ITEMS, titled)


def item_card(content: Object, where: str) -> Mistakes:
    yield from a_card(content, where)
    yield from a_text(content, "description", where, MOST_DESCRIPTION)
    if content.get("thumbnail") is not None:
        yield from each_object(content["thumbnail"], f"{where}.thumbnail", an_image)


def carousel(content: Object, where: str) -> Mistakes:
    kind = content.get("type")
    if not isinstance(kind, str) or kind not in IN_CAROUSEL:
        yield Mistake(f"{where}.type", f"is {shown(kind)}, which is none of {', '.join(IN_CAROUSEL)}")
        return
    yield from several(content.get("items"), f"{where}.items", *CAROUSEL, IN_CAROUSEL[kind])


IN_CAROUSEL: dict[str, Callable[[Object, str], Mistakes]] = {
    "textCard": text_card_in_carousel,
    "basicCard": basic_card,
    "commerceCard": commerce_card,
    "listCard": list_card,
    "itemCard": item_card,
}
KINDS: dict[str, Callable[[Object, str], Mistakes]] = {
    "simpleText": simple_text,
    "simpleImage": simple_image,
    **IN_CAROUSEL,
    "textCard": text_card,
    "carousel": carousel,
}


# Parts of kinds


def a_card(content: Object, where: str) -> Mistakes:
    yield from a_text(content, "title", where, MOST_TITLE)
    if content.get("buttons") is not None:
        abreast = content.get("buttonLayout") == "horizontal"
        most = MOST_BUTTONS_ABREAST if abreast else MOST_BUTTONS
        yield from several(content["buttons"], f"{where}.buttons", 0, most, labelled)


def titled(content: Object, where: str) -> Mistakes:
    yield from a_text(content, "title", where, MOST_TITLE, needed=True)


def labelled(content: Object, where: str) -> Mistakes:
    yield from a_text(content, "label", where, MOST_LABEL, needed=True)


def an_image(content: Object, where: str) -> Mistakes:
    yield from a_text(content, "imageUrl", where, needed=True)
    yield from a_text(content, "altText", where, MOST_ALT_TEXT)


def a_text(content: Object, name: str, where: str, most: int | None = None, *, needed: bool = False) -> Mistakes:
    """A string of so many characters, counted as people count them and not as bytes."""
    text = content.get(name)
    match text:
        case str() if needed and not text.strip():
            yield Mistake(f"{where}.{name}", "is empty")
        case str() if most is not None and len(text) > most:
            yield Mistake(f"{where}.{name}", f"has {len(text)} characters; Kakao takes {most}")
        case None if needed:
            yield Mistake(f"{where}.{name}", "is missing")
        case str() | None:
            return
        case _:
            yield Mistake(f"{where}.{name}", "is not a string")


def several(content: object, where: str, least: int, most: int, each: Callable[[Object, str], Mistakes]) -> Mistakes:
    """A list of so many objects."""
    match content:
        case list():
            items = cast("list[object]", content)
        case None:
            yield Mistake(where, "is missing")
            return
        case _:
            yield Mistake(where, "is not a list")
            return
    many = len(items)
    if not least <= many <= most:
        allowed = f"{least}" if least == most else f"at most {most}" if least == 0 else f"{least} to {most}"
        yield Mistake(where, f"has {many}; Kakao takes {allowed}")
        return
    for place, item in enumerate(items):
        yield from each_object(item, f"{where}[{place}]", each)


def each_object(content: object, where: str, check: Callable[[Object, str], Mistakes]) -> Mistakes:
    match content:
        case dict():
            yield from check(cast("Object", content), where)
        case None:
            yield Mistake(where, "is missing")
        case _:
            yield Mistake(where, "is not an object")


def an_object(content: object, where: str) -> Mistakes:
    if content is not None and not isinstance(content, dict):
        yield Mistake(where, "is not an object")


def shown(word: object) -> str:
    """Somebody's word in our sentence: short."""
    return repr(word)[:40]
