"""Every text id that the console uses exists in both languages, and none is unused."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest
from markupsafe import Markup

from pabal.console import i18n
from pabal.console.i18n import LANGUAGES, MESSAGES_FILE, SINGULAR_SUFFIX, TEXTS, Language, Translator, flatten_texts

I18N = Path(i18n.__file__).parent
CONSOLE = I18N.parent
PAGES = {path.stem for path in (I18N / "en").glob("*.toml") if path.name != MESSAGES_FILE}
TEXT_ID = re.compile(rf"""["'](({"|".join(sorted(PAGES))})(?:\.[\w:-]+)+)\.?(?=["'{{])""")
"""A string literal that begins with the name of a page. An f-string may end it with a placeholder."""
AUDIT_ACTIONS = {"audit.verified", "portal.refused"}
"""Audit actions that look like text ids."""


ALWAYS_MANY = {
    "dead_letters.group_limit",
    "dead_letters.resolve.confirm_oldest",
    "events.scan_limit",
    "notifications.scan_limit",
}
"""Texts whose count is a limit."""


def id_literals() -> Iterator[tuple[Path, str]]:
    for path in (*CONSOLE.rglob("*.py"), *CONSOLE.rglob("*.html")):
        if path.parent != I18N:
            for match in TEXT_ID.finditer(path.read_text()):
                if not match[1].endswith(".html") and match[1] not in AUDIT_ACTIONS:
                    yield path, match[1]


def is_prefix(literal: str) -> bool:
    return any(text_id.startswith(f"{literal}.") for text_id in TEXTS["en"])


def is_singular(text_id: str) -> bool:
    return text_id.endswith(SINGULAR_SUFFIX) and text_id.removesuffix(SINGULAR_SUFFIX) in TEXTS["en"]


def placeholders(text: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(text) if field is not None}


def test_every_id_that_is_used_exists() -> None:
    literals = [*id_literals()]

    assert len(literals) > 500
    assert (
        sorted(
            f"{path.relative_to(CONSOLE)}: {literal}"
            for path, literal in literals
            if literal not in TEXTS["en"] and not is_prefix(literal)
        )
        == []
    )


def test_no_text_is_unused() -> None:
    used = {literal for _, literal in id_literals()}
    unused = [
        text_id
        for text_id in TEXTS["en"]
        if text_id.removesuffix(SINGULAR_SUFFIX) not in used
        and not any(text_id.startswith(f"{literal}.") for literal in used if literal not in TEXTS["en"])
    ]

    assert unused == []


def test_both_languages_have_the_same_texts() -> None:
    assert {text_id for text_id in TEXTS["en"] if not is_singular(text_id)} == TEXTS["ko"].keys()


def test_both_languages_have_the_same_placeholders() -> None:
    for text_id, korean in TEXTS["ko"].items():
        assert placeholders(korean) == placeholders(TEXTS["en"][text_id]), text_id
        assert all(name.isidentifier() for name in placeholders(korean)), text_id
    for text_id in filter(is_singular, TEXTS["en"]):
        plural = placeholders(TEXTS["en"][text_id.removesuffix(SINGULAR_SUFFIX)])
        assert placeholders(TEXTS["en"][text_id]) == plural - {"count"}, text_id
        assert "count" in plural, text_id


def test_every_english_text_with_a_count_has_a_singular() -> None:
    counted = {text_id for text_id, text in TEXTS["en"].items() if re.search(r"\{count\} (\w+ )*?\w+s\b", text)}

    assert {text_id for text_id in counted if text_id + SINGULAR_SUFFIX not in TEXTS["en"]} == ALWAYS_MANY


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_id_begins_with_the_name_of_its_file(language: Language) -> None:
    for path in (I18N / language).glob("*.toml"):
        if path.name != MESSAGES_FILE:
            ids = [text_id for text_id, _ in flatten_texts(tomllib.loads(path.read_text("utf-8")))]
            assert [text_id for text_id in ids if not text_id.startswith(f"{path.stem}.")] == []


def test_no_korean_text_hedges_between_two_particles() -> None:
    assert [text for text in TEXTS["ko"].values() if re.search(r"[을이은와]\([를가는과]\)", text)] == []


def test_a_count_selects_the_singular_and_gets_separators() -> None:
    english, korean = Translator("en"), Translator("ko")

    assert english("dead_letters.replay.done", count=1) == "1 dead letter replayed."
    assert english("dead_letters.replay.done", count=1200) == "1,200 dead letters replayed."
    assert english("events.scan_limit", count=1200, time=Markup("<b>1</b>")) == Markup(
        "Searched 1,200 events, back to <b>1</b>. Select “Older” to continue."
    )
    assert korean("relay.message.only_conversation", conversation=Markup("<i>x</i>")).startswith("<i>x</i> ")
    assert english("services.disable.confirm", count=2, name="<b>").startswith("“<b>”"), "escaped by the template"
    assert korean("dead_letters.replay.done", count=1) == "데드 레터 1건을 재처리했습니다."
