"""Validation of skill responses against Kakao's limits."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import Invalid
from pabal.relay.reply.validate import MAX_REPORTED_ERRORS, OUTPUT_CHECKS, list_skill_outputs, validate_skill_response

Object = dict[str, Any]


def told(*outputs: Any, **more: Any) -> Object:
    return {"version": "2.0", "template": {"outputs": [*outputs], **more}}


def text(length: int) -> Object:
    return {"simpleText": {"text": "가" * length}}


def mistakes(response: object) -> dict[str, str]:
    with pytest.raises(Invalid) as refused:
        validate_skill_response(response)
    return {mistake.field: mistake.why for mistake in refused.value.errors}


IMAGE = {"imageUrl": "https://example.org/a.png"}
ITEM = {"title": "one"}
BUTTON = {"label": "열기", "action": "webLink", "webLinkUrl": "https://example.org"}
CARD = {"title": "a title", "description": "a description", "buttons": [BUTTON]}

GOOD: dict[str, Object] = {
    "simpleText": {"text": "hello"},
    "simpleImage": IMAGE | {"altText": "a picture"},
    "textCard": CARD,
    "basicCard": CARD | {"thumbnail": IMAGE},
    "commerceCard": {"title": "shoes", "price": 10000, "currency": "won", "thumbnails": [IMAGE], "buttons": [BUTTON]},
    "listCard": {"header": {"title": "a list"}, "items": [ITEM, ITEM]},
    "itemCard": {"title": "a ticket", "itemList": [{"title": "seat", "description": "4A"}]},
    "carousel": {"type": "basicCard", "items": [CARD, CARD]},
}


@pytest.mark.parametrize("kind", sorted(OUTPUT_CHECKS))
def test_every_output_kind_passes_unchanged(kind: str) -> None:
    response = told({kind: GOOD[kind]})

    assert validate_skill_response(deepcopy(response)) == response


def test_context_data_and_unknown_keys_pass_through() -> None:
    response = told({"simpleText": {"text": "x", "extra": {"a": [1]}}}, quickReplies=None) | {
        "context": {"values": []},
        "data": {"k": 1},
        "useCallback": False,
    }

    assert validate_skill_response(response) is response
    assert list_skill_outputs(response) == [{"simpleText": {"text": "x", "extra": {"a": [1]}}}]


def test_a_response_with_data_only_has_no_outputs() -> None:
    response = {"version": "2.0", "data": {"k": 1}}

    assert list_skill_outputs(validate_skill_response(response)) == []


WHERE = "response.template.outputs[0]"

LIMITS: dict[str, tuple[Object, str]] = {
    "long text": (told(text(1001)), f"{WHERE}.simpleText.text"),
    "empty text": (told({"simpleText": {"text": " \n"}}), f"{WHERE}.simpleText.text"),
    "no text": (told({"simpleText": {}}), f"{WHERE}.simpleText.text"),
    "text that is none": (told({"simpleText": {"text": 5}}), f"{WHERE}.simpleText.text"),
    "text in the kind's place": (told({"simpleText": "hello"}), f"{WHERE}.simpleText"),
    "four outputs": (told(*[text(1)] * 4), "response.template.outputs"),
    "no outputs": (told(), "response.template.outputs"),
    "outputs missing": ({"version": "2.0", "template": {}}, "response.template.outputs"),
    "outputs that are none": ({"version": "2.0", "template": {"outputs": {}}}, "response.template.outputs"),
    "an output that is none": (told("hello"), WHERE),
    "an output without kind": (told({}), WHERE),
    "an output of nothing": (told({"simpleText": None}), WHERE),
    "two kinds in one": (told({**text(1), "simpleImage": IMAGE}), WHERE),
    "unknown kind": (told({"video": {"url": "https://example.org"}}), WHERE),
    "second output": (told(text(1), text(1001)), "response.template.outputs[1].simpleText.text"),
    "no image": (told({"simpleImage": {"altText": "x"}}), f"{WHERE}.simpleImage.imageUrl"),
    "long alt text": (told({"simpleImage": IMAGE | {"altText": "x" * 51}}), f"{WHERE}.simpleImage.altText"),
    "long card title": (told({"basicCard": {"title": "x" * 51}}), f"{WHERE}.basicCard.title"),
    "long description": (told({"basicCard": {"description": "x" * 231}}), f"{WHERE}.basicCard.description"),
    "thumbnail alt text": (
        told({"basicCard": {"thumbnail": IMAGE | {"altText": "x" * 51}}}),
        f"{WHERE}.basicCard.thumbnail.altText",
    ),
    "long text card": (told({"textCard": {"title": "x" * 50, "description": "y" * 351}}), f"{WHERE}.textCard"),
    "empty text card": (told({"textCard": {"buttons": [BUTTON]}}), f"{WHERE}.textCard"),
    "four buttons": (told({"basicCard": CARD | {"buttons": [BUTTON] * 4}}), f"{WHERE}.basicCard.buttons"),
    "three abreast": (
        told({"textCard": CARD | {"buttons": [BUTTON] * 3, "buttonLayout": "horizontal"}}),
        f"{WHERE}.textCard.buttons",
    ),
    "long label": (
        told({"textCard": CARD | {"buttons": [BUTTON | {"label": "x" * 15}]}}),
        f"{WHERE}.textCard.buttons[0].label",
    ),
    "eleven quick replies": (
        told(text(1), quickReplies=[{"label": "x"}] * 11),
        "response.template.quickReplies",
    ),
    "long quick reply": (
        told(text(1), quickReplies=[{"label": "x" * 15}]),
        "response.template.quickReplies[0].label",
    ),
    "quick reply without label": (told(text(1), quickReplies=[{}]), "response.template.quickReplies[0].label"),
    "carousel of one": (told({"carousel": {"type": "basicCard", "items": [CARD]}}), f"{WHERE}.carousel.items"),
    "carousel of eleven": (told({"carousel": {"type": "basicCard", "items": [CARD] * 11}}), f"{WHERE}.carousel.items"),
    "carousel of texts": (told({"carousel": {"type": "simpleText", "items": []}}), f"{WHERE}.carousel.type"),
    "carousel of odd type": (told({"carousel": {"type": ["basicCard"], "items": []}}), f"{WHERE}.carousel.type"),
    "long text card in a carousel": (
        told({"carousel": {"type": "textCard", "items": [CARD, {"description": "x" * 129}]}}),
        f"{WHERE}.carousel.items[1]",
    ),
    "list of one": (told({"listCard": {"header": ITEM, "items": [ITEM]}}), f"{WHERE}.listCard.items"),
    "list of six": (told({"listCard": {"header": ITEM, "items": [ITEM] * 6}}), f"{WHERE}.listCard.items"),
    "list without header": (told({"listCard": {"items": [ITEM] * 2}}), f"{WHERE}.listCard.header"),
    "two thumbnails": (told({"commerceCard": {"thumbnails": [IMAGE] * 2}}), f"{WHERE}.commerceCard.thumbnails"),
    "version missing": ({"template": told(text(1))["template"]}, "response.version"),
    "another version": (told(text(1)) | {"version": "1.0"}, "response.version"),
    "version that is a number": (told(text(1)) | {"version": 2.0}, "response.version"),
    "template missing": ({"version": "2.0", "useCallback": True}, "response.template"),
    "template that is none": ({"version": "2.0", "template": []}, "response.template"),
    "context that is none": (told(text(1)) | {"context": "x"}, "response.context"),
    "data that is none": (told(text(1)) | {"data": [1]}, "response.data"),
}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_response_over_a_limit_is_refused_with_the_field(name: str) -> None:
    response, field = LIMITS[name]

    assert [*mistakes(response)] == [field]


def test_the_error_names_the_limit() -> None:
    assert mistakes(told(text(1001))) == {f"{WHERE}.simpleText.text": "has 1001 characters; Kakao allows 1000"}
    assert mistakes(told(*[text(1)] * 4)) == {"response.template.outputs": "has 4 items; Kakao allows 1 to 3"}


@pytest.mark.parametrize("garbage", [None, "hello", 5, [], [told(text(1))], True])
def test_other_json_is_refused_as_a_whole(garbage: object) -> None:
    assert mistakes(garbage) == {"response": "is not a skill response: an object with version and template"}


def test_errors_are_reported_together_up_to_a_limit() -> None:
    many = told(text(1), quickReplies=[{"label": "x" * 15}] * 10) | {"version": "1.0"}

    assert len(mistakes(many)) == MAX_REPORTED_ERRORS


at_the_edge = st.sampled_from([1, 2, 13, 14, 15, 49, 50, 51, 128, 129, 229, 230, 231, 399, 400, 401, 999, 1000, 1001])


@given(length=at_the_edge, emoji=st.sampled_from(["a", "가", "😀"]))
def test_text_length_is_counted_in_characters(length: int, emoji: str) -> None:
    response = told({"simpleText": {"text": emoji * length}})

    if length <= 1000:
        assert validate_skill_response(response) is response
    else:
        assert mistakes(response)


@given(title=at_the_edge, description=at_the_edge, carried=st.booleans())
def test_a_text_card_counts_title_and_description(title: int, description: int, carried: bool) -> None:
    card = {"title": "t" * title, "description": "d" * description}
    response = told({"carousel": {"type": "textCard", "items": [card] * 2}} if carried else {"textCard": card})

    fits = title <= 50 and title + description <= (128 if carried else 400)
    if fits:
        assert validate_skill_response(response) is response
    else:
        assert mistakes(response)


def judged(response: Any) -> tuple[list[Object], list[str]]:
    """The outputs of a response, or the fields it is refused for."""
    try:
        return list_skill_outputs(validate_skill_response(response)), []
    except Invalid as refused:
        return [], [mistake.field for mistake in refused.errors]


words = st.sampled_from(
    [
        *OUTPUT_CHECKS,
        "version",
        "template",
        "outputs",
        "quickReplies",
        "buttons",
        "items",
        "type",
        "header",
        "label",
        "text",
    ]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(anything)
def test_validation_never_crashes_and_never_changes_the_response(garbage: Any) -> None:
    before = deepcopy(garbage)
    for response in (garbage, {"version": "2.0", "template": garbage}, told(garbage)):
        shown, wrong = judged(response)
        assert (1 <= len(shown) <= 3) != bool(wrong)
        assert all(field.startswith("response") for field in wrong)

    assert garbage == before
