"""Validation of skill responses against Kakao's limits."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import Invalid
from pabal.relay.reply.validate import MAX_REPORTED_ERRORS, OUTPUT_CHECKS, list_skill_outputs, validate_skill_response

Object = dict[str, Any]


def response_of(*outputs: Any, **template_fields: Any) -> Object:
    return {"version": "2.0", "template": {"outputs": [*outputs], **template_fields}}


def text(length: int) -> Object:
    return {"simpleText": {"text": "가" * length}}


def errors_of(response: object) -> dict[str, str]:
    with pytest.raises(Invalid) as error:
        validate_skill_response(response)
    return {field_error.field: field_error.why for field_error in error.value.errors}


IMAGE = {"imageUrl": "https://example.org/a.png"}
ITEM = {"title": "one"}
BUTTON = {"label": "열기", "action": "webLink", "webLinkUrl": "https://example.org"}
CARD = {"title": "a title", "description": "a description", "buttons": [BUTTON]}

VALID_OUTPUTS: dict[str, Object] = {
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
    response = response_of({kind: VALID_OUTPUTS[kind]})

    assert validate_skill_response(deepcopy(response)) == response


def test_context_data_and_unknown_keys_pass_through() -> None:
    response = response_of({"simpleText": {"text": "x", "extra": {"a": [1]}}}, quickReplies=None) | {
        "context": {"values": []},
        "data": {"k": 1},
        "useCallback": False,
    }

    assert validate_skill_response(response) is response
    assert list_skill_outputs(response) == [{"simpleText": {"text": "x", "extra": {"a": [1]}}}]


def test_a_response_with_data_only_has_no_outputs() -> None:
    response = {"version": "2.0", "data": {"k": 1}}

    assert list_skill_outputs(validate_skill_response(response)) == []


FIRST_OUTPUT = "response.template.outputs[0]"

LIMITS: dict[str, tuple[Object, str]] = {
    "long text": (response_of(text(1001)), f"{FIRST_OUTPUT}.simpleText.text"),
    "empty text": (response_of({"simpleText": {"text": " \n"}}), f"{FIRST_OUTPUT}.simpleText.text"),
    "no text": (response_of({"simpleText": {}}), f"{FIRST_OUTPUT}.simpleText.text"),
    "text of another type": (response_of({"simpleText": {"text": 5}}), f"{FIRST_OUTPUT}.simpleText.text"),
    "a string instead of an object": (response_of({"simpleText": "hello"}), f"{FIRST_OUTPUT}.simpleText"),
    "four outputs": (response_of(*[text(1)] * 4), "response.template.outputs"),
    "no outputs": (response_of(), "response.template.outputs"),
    "outputs missing": ({"version": "2.0", "template": {}}, "response.template.outputs"),
    "outputs of another type": ({"version": "2.0", "template": {"outputs": {}}}, "response.template.outputs"),
    "an output of another type": (response_of("hello"), FIRST_OUTPUT),
    "an output without kind": (response_of({}), FIRST_OUTPUT),
    "a null output": (response_of({"simpleText": None}), FIRST_OUTPUT),
    "two kinds in one output": (response_of({**text(1), "simpleImage": IMAGE}), FIRST_OUTPUT),
    "unknown kind": (response_of({"video": {"url": "https://example.org"}}), FIRST_OUTPUT),
    "second output": (response_of(text(1), text(1001)), "response.template.outputs[1].simpleText.text"),
    "no image": (response_of({"simpleImage": {"altText": "x"}}), f"{FIRST_OUTPUT}.simpleImage.imageUrl"),
    "long alt text": (
        response_of({"simpleImage": IMAGE | {"altText": "x" * 51}}),
        f"{FIRST_OUTPUT}.simpleImage.altText",
    ),
    "long card title": (response_of({"basicCard": {"title": "x" * 51}}), f"{FIRST_OUTPUT}.basicCard.title"),
    "long description": (
        response_of({"basicCard": {"description": "x" * 231}}),
        f"{FIRST_OUTPUT}.basicCard.description",
    ),
    "thumbnail alt text": (
        response_of({"basicCard": {"thumbnail": IMAGE | {"altText": "x" * 51}}}),
        f"{FIRST_OUTPUT}.basicCard.thumbnail.altText",
    ),
    "long text card": (
        response_of({"textCard": {"title": "x" * 50, "description": "y" * 351}}),
        f"{FIRST_OUTPUT}.textCard",
    ),
    "empty text card": (response_of({"textCard": {"buttons": [BUTTON]}}), f"{FIRST_OUTPUT}.textCard"),
    "four buttons": (response_of({"basicCard": CARD | {"buttons": [BUTTON] * 4}}), f"{FIRST_OUTPUT}.basicCard.buttons"),
    "three horizontal buttons": (
        response_of({"textCard": CARD | {"buttons": [BUTTON] * 3, "buttonLayout": "horizontal"}}),
        f"{FIRST_OUTPUT}.textCard.buttons",
    ),
    "long label": (
        response_of({"textCard": CARD | {"buttons": [BUTTON | {"label": "x" * 15}]}}),
        f"{FIRST_OUTPUT}.textCard.buttons[0].label",
    ),
    "eleven quick replies": (
        response_of(text(1), quickReplies=[{"label": "x"}] * 11),
        "response.template.quickReplies",
    ),
    "long quick reply": (
        response_of(text(1), quickReplies=[{"label": "x" * 15}]),
        "response.template.quickReplies[0].label",
    ),
    "quick reply without label": (response_of(text(1), quickReplies=[{}]), "response.template.quickReplies[0].label"),
    "carousel of one": (
        response_of({"carousel": {"type": "basicCard", "items": [CARD]}}),
        f"{FIRST_OUTPUT}.carousel.items",
    ),
    "carousel of eleven": (
        response_of({"carousel": {"type": "basicCard", "items": [CARD] * 11}}),
        f"{FIRST_OUTPUT}.carousel.items",
    ),
    "carousel of texts": (
        response_of({"carousel": {"type": "simpleText", "items": []}}),
        f"{FIRST_OUTPUT}.carousel.type",
    ),
    "carousel type that is a list": (
        response_of({"carousel": {"type": ["basicCard"], "items": []}}),
        f"{FIRST_OUTPUT}.carousel.type",
    ),
    "long text card in a carousel": (
        response_of({"carousel": {"type": "textCard", "items": [CARD, {"description": "x" * 129}]}}),
        f"{FIRST_OUTPUT}.carousel.items[1]",
    ),
    "list of one": (response_of({"listCard": {"header": ITEM, "items": [ITEM]}}), f"{FIRST_OUTPUT}.listCard.items"),
    "list of six": (response_of({"listCard": {"header": ITEM, "items": [ITEM] * 6}}), f"{FIRST_OUTPUT}.listCard.items"),
    "list without header": (response_of({"listCard": {"items": [ITEM] * 2}}), f"{FIRST_OUTPUT}.listCard.header"),
    "two thumbnails": (
        response_of({"commerceCard": {"thumbnails": [IMAGE] * 2}}),
        f"{FIRST_OUTPUT}.commerceCard.thumbnails",
    ),
    "version missing": ({"template": response_of(text(1))["template"]}, "response.version"),
    "another version": (response_of(text(1)) | {"version": "1.0"}, "response.version"),
    "version that is a number": (response_of(text(1)) | {"version": 2.0}, "response.version"),
    "template missing": ({"version": "2.0", "useCallback": True}, "response.template"),
    "template of another type": ({"version": "2.0", "template": []}, "response.template"),
    "context of another type": (response_of(text(1)) | {"context": "x"}, "response.context"),
    "data of another type": (response_of(text(1)) | {"data": [1]}, "response.data"),
}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_response_over_a_limit_is_refused_with_the_field(name: str) -> None:
    response, field = LIMITS[name]

    assert [*errors_of(response)] == [field]


def test_the_error_names_the_limit() -> None:
    assert errors_of(response_of(text(1001))) == {
        f"{FIRST_OUTPUT}.simpleText.text": "has 1001 characters; Kakao allows 1000"
    }
    assert errors_of(response_of(*[text(1)] * 4)) == {"response.template.outputs": "has 4 items; Kakao allows 1 to 3"}


@pytest.mark.parametrize("garbage", [None, "hello", 5, [], [response_of(text(1))], True])
def test_other_json_is_refused_as_a_whole(garbage: object) -> None:
    assert errors_of(garbage) == {
        "response": "is neither a text nor a skill response, an object with version and template"
    }


def test_errors_are_reported_together_up_to_a_limit() -> None:
    response = response_of(text(1), quickReplies=[{"label": "x" * 15}] * 10) | {"version": "1.0"}

    assert len(errors_of(response)) == MAX_REPORTED_ERRORS


edge_lengths = st.sampled_from([1, 2, 13, 14, 15, 49, 50, 51, 128, 129, 229, 230, 231, 399, 400, 401, 999, 1000, 1001])


@given(length=edge_lengths, character=st.sampled_from(["a", "가", "😀"]))
def test_text_length_is_counted_in_characters(length: int, character: str) -> None:
    response = response_of({"simpleText": {"text": character * length}})

    if length <= 1000:
        assert validate_skill_response(response) is response
    else:
        assert errors_of(response)


@given(title=edge_lengths, description=edge_lengths, in_carousel=st.booleans())
def test_a_text_card_counts_title_and_description(title: int, description: int, in_carousel: bool) -> None:
    card = {"title": "t" * title, "description": "d" * description}
    response = response_of(
        {"carousel": {"type": "textCard", "items": [card] * 2}} if in_carousel else {"textCard": card}
    )

    fits = title <= 50 and title + description <= (128 if in_carousel else 400)
    if fits:
        assert validate_skill_response(response) is response
    else:
        assert errors_of(response)


def validate(response: Any) -> tuple[list[Object], list[str]]:
    """The outputs of a response, or the fields it is refused for."""
    try:
        return list_skill_outputs(validate_skill_response(response)), []
    except Invalid as error:
        return [], [field_error.field for field_error in error.errors]


key_names = st.sampled_from(
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
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | key_names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(key_names, inner, max_size=4),
    max_leaves=20,
)


@given(any_json)
def test_validation_never_crashes_and_never_changes_the_response(value: Any) -> None:
    before = deepcopy(value)
    for response in (value, {"version": "2.0", "template": value}, response_of(value)):
        outputs, fields = validate(response)
        assert (1 <= len(outputs) <= 3) != bool(fields)
        assert all(field.startswith("response") for field in fields)

    assert value == before
