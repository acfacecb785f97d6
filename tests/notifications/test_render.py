"""Rendering: values are inserted as plain text, and a text fits its channel."""

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.notifications.decision.decide import Criticality, NotificationCategory, NotificationChannel
from pabal.notifications.templates.catalogue import load_templates
from pabal.notifications.templates.render import (
    CHANNEL_LIMITS,
    ELLIPSIS,
    LINE_START_MARKERS,
    MAX_VALUE_LENGTH,
    RenderedText,
    Unrenderable,
    escape_for_discord,
    render_notification,
    truncate_utf16,
    utf16_length,
)
from pabal.notifications.templates.template import TEMPLATE_LOCALES, Template, TemplateText, VariableType

NO_DEADLINE = trying(deadline=None)  # the machine may be busy
SAMPLES: dict[VariableType, Any] = {
    VariableType.TEXT: "Minu",
    VariableType.INTEGER: 12900,
    VariableType.NUMBER: 1.5,
    VariableType.BOOLEAN: True,
}
DISCORD = [NotificationChannel.USER_DM, NotificationChannel.GUILD_AUDIT_CHANNEL]
ESCAPED = re.compile(r"\\[^0-9A-Za-z\s]")
"""Discord's backslash escape: it applies to any character except letters, digits and spaces."""


def template(body: str, title: str | None = None, **variables: VariableType) -> Template:
    texts = {
        channel: {locale: TemplateText(body, title) for locale in TEMPLATE_LOCALES} for channel in NotificationChannel
    }
    return Template("shop.sold", NotificationCategory.PAYMENT, Criticality.NORMAL, variables, texts, "")


def render_value(
    value: Any,
    channel: NotificationChannel = NotificationChannel.USER_DM,
    kind: VariableType = VariableType.TEXT,
    body: str = "{{ it }}",
) -> str:
    return render_notification(template(body, it=kind), channel, "en", {"it": value}).body


@pytest.mark.parametrize("builtin", load_templates().all(), ids=lambda builtin: builtin.key)
def test_every_template_has_both_languages_for_each_channel(builtin: Template) -> None:
    payload = {name: SAMPLES[kind] for name, kind in builtin.variables.items()}

    for channel in builtin.texts:
        ko, en = (render_notification(builtin, channel, locale, payload) for locale in ("ko", "en"))
        assert re.search("[가-힣]", f"{ko.title}{ko.body}")
        assert not re.search("[가-힣]", f"{en.title}{en.body}")
        assert "{" not in f"{ko.title}{ko.body}{en.title}{en.body}"


@pytest.mark.parametrize(
    "value",
    [
        "{{ 7 * 7 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ self }}",
        "{# gone #}",
        "${7*7}",
        "%(it)s",
        "{it.__class__}",
    ],
)
@pytest.mark.parametrize("channel", [*NotificationChannel])
def test_a_value_is_never_read_as_a_template(channel: NotificationChannel, value: str) -> None:
    body = render_value(value, channel)

    assert ESCAPED.sub(lambda pair: pair[0][1], body).replace("@\u200b", "@") == value


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("@everyone", "@\u200beveryone"),
        ("<@123>", r"\<@" + "\u200b" + r"123\>"),
        ("<#123> <:x:1> </ban:1>", r"\<\#123\> \<\:x\:1\> \</ban\:1\>"),
        ("[Nitro](http://evil.example)", r"\[Nitro\]\(http\://evil.example\)"),
        ("`rm`", r"\`rm\`"),
        ("**b** __u__ ~~s~~ ||x||", r"\*\*b\*\* \_\_u\_\_ \~\~s\~\~ \|\|x\|\|"),
        ("x\n# head\n> quote", "x\n\\# head\n\\> quote"),
        ("- a\n  + b\n12. c", "\\- a\n  \\+ b\n12\\. c"),
        ("trailing \\", r"trailing \\"),
        ("a-b 1.5 +82", "a-b 1.5 +82"),
    ],
)
@pytest.mark.parametrize("channel", DISCORD)
def test_values_are_escaped_for_discord(channel: NotificationChannel, value: str, escaped: str) -> None:
    assert render_value(value, channel) == escaped


def test_values_are_not_escaped_in_a_toast() -> None:
    assert render_value("<b>@everyone</b> [x](y)", NotificationChannel.DASHBOARD_TOAST) == "<b>@everyone</b> [x](y)"


@NO_DEADLINE
@given(st.text(max_size=200))
@example(":0.")
@example("*- ")
def test_no_markdown_character_of_a_value_stays_unescaped(value: str) -> None:
    # A placeholder replaces each escape, so that the next character does not move to a line start.
    unescaped = ESCAPED.sub("x", escape_for_discord(value))

    assert not re.search(r"[\\`*_~|<>\[\]()#]|@(?!\u200b)|://", unescaped)
    assert not re.search(r"^\s*([-+]|\d+\.)", unescaped, re.MULTILINE)


@NO_DEADLINE
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp"]), max_size=200))
def test_escaping_loses_nothing(value: str) -> None:
    assert ESCAPED.sub(lambda pair: pair[0][1], escape_for_discord(value)).replace("@\u200b", "@") == value


def test_many_empty_lines_are_escaped_in_linear_time() -> None:
    started = time.process_time()

    assert LINE_START_MARKERS.sub(r"\1x", "\n" * 20_000 + "- a") == "\n" * 20_000 + "x a"

    assert time.process_time() - started < 1


def test_invisible_characters_are_removed() -> None:
    assert render_value("a\x00b\u202ec\u2066d\x1b[0m\r\ne", NotificationChannel.DASHBOARD_TOAST) == "abcd[0m\ne"


def test_markdown_of_the_template_is_kept() -> None:
    assert render_value("*x*", body="**{{ it }}**") == r"**\*x\***"


def test_a_long_value_does_not_push_out_the_text_around_it() -> None:
    body = render_value("x" * 100_000, body="{{ it }} is done")

    assert body == "x" * (MAX_VALUE_LENGTH - 1) + ELLIPSIS + " is done"


@pytest.mark.parametrize("channel", [*NotificationChannel])
@NO_DEADLINE
@given(st.text(st.sampled_from("x가😀\\*\n "), min_size=0, max_size=1000))
def test_a_text_fits_its_channel_for_any_values(channel: NotificationChannel, value: str) -> None:
    long_template = template(
        "{{ a }}{{ b }}{{ c }}{{ d }}{{ e }}", "{{ a }}{{ b }}", **dict.fromkeys("abcde", VariableType.TEXT)
    )

    text = render_notification(long_template, channel, "ko", dict.fromkeys("abcde", value))

    assert utf16_length(text.title or "") <= CHANNEL_LIMITS[channel].title
    assert 0 < utf16_length(text.body) <= CHANNEL_LIMITS[channel].body
    assert "\n" not in (text.title or "")


@NO_DEADLINE
@given(st.text(max_size=50), st.integers(2, 40))
def test_a_truncated_text_ends_in_an_ellipsis(text: str, limit: int) -> None:
    truncated = truncate_utf16(text, limit)

    assert len(truncated.encode("utf-16-le", "surrogatepass")) // 2 <= limit
    assert truncated == text or (truncated.endswith(ELLIPSIS) and text.startswith(truncated[:-1]))


@pytest.mark.parametrize(
    ("locale", "language"), [("ko", "ko"), ("ko-KR", "ko"), ("en-US", "en"), ("fr", "en"), ("", "en")]
)
def test_an_unsupported_language_falls_back_to_english(locale: str, language: str) -> None:
    news = load_templates().get("marketing.news")

    title = render_notification(
        news, NotificationChannel.USER_DM, locale, {"headline": "Spring", "story": "It is here."}
    ).title

    assert title == {"ko": "(광고) Spring", "en": "(Ad) Spring"}[language]


def test_filters_and_conditions_are_rendered() -> None:
    completed = load_templates().get("restore.completed")
    payload = {"guild": "Minu", "restored": 12900, "failed": 0}

    without_failures = render_notification(completed, NotificationChannel.USER_DM, "en", payload)
    with_failures = render_notification(completed, NotificationChannel.USER_DM, "en", payload | {"failed": 1234})

    assert without_failures == RenderedText("Restore finished", "Restored 12,900 items in **Minu**.")
    assert with_failures.body.endswith("1,234 could not be restored.")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (VariableType.TEXT, 1),
        (VariableType.TEXT, None),
        (VariableType.TEXT, ["x"]),
        (VariableType.INTEGER, 1.5),
        (VariableType.INTEGER, True),
        (VariableType.INTEGER, "1"),
        (VariableType.NUMBER, True),
        (VariableType.NUMBER, float("nan")),
        (VariableType.BOOLEAN, 1),
    ],
)
def test_a_value_of_another_type_is_not_rendered(kind: VariableType, value: Any) -> None:
    with pytest.raises(Unrenderable, match="it"):
        render_value(value, kind=kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (VariableType.INTEGER, 10**400),
        (VariableType.INTEGER, 2.0),
        (VariableType.NUMBER, 3),
        (VariableType.NUMBER, 0.5),
    ],
)
def test_numbers_are_accepted_as_in_json(kind: VariableType, value: Any) -> None:
    assert kind.accepts(value)


def test_a_mismatched_payload_is_unrenderable() -> None:
    with pytest.raises(Unrenderable, match=r"payload\.it"):
        render_notification(template("{{ it }}", it=VariableType.TEXT), NotificationChannel.USER_DM, "en", {})
    with pytest.raises(Unrenderable, match="no text for guild_audit_channel"):
        render_notification(
            load_templates().get("marketing.news"),
            NotificationChannel.GUILD_AUDIT_CHANNEL,
            "en",
            {"headline": "", "story": ""},
        )
    with pytest.raises(Unrenderable, match=r"shop\.sold"):
        render_value("x", body="{{ it | grouped }}")
    with pytest.raises(Unrenderable, match=r"shop\.sold"):
        render_value(10**5000, kind=VariableType.INTEGER)


def test_a_rendered_body_is_never_empty() -> None:
    assert render_value("  ", NotificationChannel.DASHBOARD_TOAST) == ELLIPSIS


@pytest.mark.parametrize(
    "part", ["\u0301", "\\", "\ud7a3\u200e", " ", "1", "- ", "\n", "@", "\U0001f600", "\u202e", "ß"]
)
@pytest.mark.parametrize("channel", NotificationChannel)
def test_the_longest_values_are_rendered_in_little_time(channel: NotificationChannel, part: str) -> None:
    """A payload has 64 KB at most, and a template may use each variable many times."""
    body = "".join(f"{{{{ v{number} }}}} {{{{ v{number} | upper }}}}\n" * 3 for number in range(10))
    values = {f"v{number}": (part * 6000)[:6000] for number in range(9)} | {"v9": (part * 60_000)[:60_000]}
    many = template(body, "{{ v9 }}{{ v9 }}", **dict.fromkeys(values, VariableType.TEXT))
    render_notification(many, channel, "en", dict.fromkeys(values, "x"))  # compiles the texts
    started = time.thread_time()

    render_notification(many, channel, "en", values)

    assert time.thread_time() - started < 0.05
