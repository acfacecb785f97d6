"""Fitting responses into Kakao's limits without losing anything."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import Invalid
from pabal.relay.reply.fit import MAX_SPLIT_LENGTH, fit_skill_response
from pabal.relay.reply.recorded import MAX_FURTHER_REPLIES
from pabal.relay.reply.validate import list_skill_outputs, validate_skill_response

Object = dict[str, Any]


def response_of(*texts: str, **template_fields: Any) -> Object:
    return {
        "version": "2.0",
        "template": {"outputs": [{"simpleText": {"text": text}} for text in texts], **template_fields},
    }


def bubbles(response: object) -> list[str]:
    return [output["simpleText"]["text"] for output in list_skill_outputs(validate_skill_response(response))]


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(
    "response", [response_of("hello"), response_of("x" * 1000, "y"), None, 5, [], {}, {"template": 1}]
)
def test_a_response_that_fits_or_has_another_form_is_left_as_it_is(response: object) -> None:
    assert fit_skill_response(response) == (response, [])
    assert fit_skill_response(response)[0] is response


def test_a_text_is_a_response() -> None:
    assert fit_skill_response("hello") == (response_of("hello"), [])


@pytest.mark.parametrize("end", ["\n", ". ", " "], ids=["line", "sentence", "word"])
def test_a_long_text_is_split_at_the_best_place(end: str) -> None:
    text = f"{'a' * 400} {'b' * 390}{end}{'c' * 600}"

    fitted, further = fit_skill_response(response_of(text, quickReplies=[{"label": "more"}]))

    assert bubbles(fitted) == [f"{'a' * 400} {'b' * 390}{end}".rstrip(), "c" * 600]
    assert fitted["template"]["quickReplies"] == [{"label": "more"}]  # pyright: ignore[reportIndexIssue]
    assert further == []


def test_what_does_not_fit_into_three_bubbles_follows_in_further_responses() -> None:
    fitted, further = fit_skill_response(response_of("x" * 2500, "y" * 2500))

    assert [len(text) for text in bubbles(fitted)] == [1000, 1000, 500]
    assert [[len(text) for text in bubbles(response)] for response in further] == [[1000], [1000], [500]]


def test_a_text_beyond_all_bubbles_is_refused_with_its_length() -> None:
    fitted, further = fit_skill_response(response_of("x" * (MAX_SPLIT_LENGTH + 1)))

    with pytest.raises(Invalid, match=f"has {MAX_SPLIT_LENGTH + 1} characters"):
        validate_skill_response(fitted)
    assert further == []


words = st.sampled_from(["a", "가", "😀", ". ", "다. ", "! ", "\n", "\n\n", "   ", "\t"])
texts = st.lists(words, max_size=60).map(lambda parts: "".join(parts) * 60)


@given(st.lists(texts, min_size=1, max_size=3))
def test_no_character_is_lost_or_moved(texts: list[str]) -> None:
    fitted, further = fit_skill_response(response_of(*texts))

    try:
        parts = [text for response in (fitted, *further) for text in bubbles(response)]
    except Invalid:  # an empty text, or one that is too long
        assert any(not text.strip() or len(text) > 1000 for text in texts)
        return
    assert without_space("".join(parts)) == without_space("".join(texts))
    assert all(parts)
    assert len(further) <= MAX_FURTHER_REPLIES


def test_a_long_label_is_shortened_and_still_sends_its_text() -> None:
    """At every fiftieth message, the OpenClaw plugin adds a label of 16 characters."""
    long = {"label": "💡 /compact (50개)", "action": "message"}
    linked = {"label": "x" * 15, "action": "block", "blockId": "1"}
    quick_replies = [long, long | {"messageText": "/compact"}, linked, {"label": "x" * 14}, "no object"]

    fitted, _ = fit_skill_response(response_of("hello", quickReplies=quick_replies))

    assert fitted["template"]["quickReplies"] == [  # pyright: ignore[reportIndexIssue]
        {"label": "💡 /compact (5…", "action": "message", "messageText": "💡 /compact (50개)"},
        {"label": "💡 /compact (5…", "action": "message", "messageText": "/compact"},
        linked | {"label": "x" * 13 + "…"},
        {"label": "x" * 14},
        "no object",
    ]
