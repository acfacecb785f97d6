import re
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.console import figures, texts
from pabal.notifications.plan import Category
from pabal.notifications.preferences import SWITCHES

CONSOLE = Path(texts.__file__).parent


@pytest.mark.parametrize(
    ("seconds", "read"),
    [(0, "0.0 s"), (3.24, "3.2 s"), (240, "4 min"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_an_age_is_written_as_a_person_says_it(seconds: float, read: str) -> None:
    assert figures.age(timedelta(seconds=seconds)) == read


def test_every_text_is_there_in_both_languages_and_used() -> None:
    pages = "".join(path.read_text() for path in [*CONSOLE.rglob("templates/**/*.html"), *CONSOLE.glob("*.py")])
    said = {*re.findall(r"""\bt\(["']([^"']+)["']\)""", pages), *re.findall(r'note\(request, "([^"]+)"', pages)}
    by_lane = {f"{lane}{carries}" for lane in ("relay", "events", "notifications") for carries in ("", " carries")}

    by_switch = {f"{switch}{about}" for switch in (*SWITCHES, "night_consent") for about in ("", " about")}
    by_category = {f"about {category}" for category in Category}

    assert said | by_lane | by_switch | by_category == texts.TEXTS.keys()
    assert all(korean and english for korean, english in texts.TEXTS.values())


def test_no_page_needs_what_the_policy_forbids() -> None:
    for path in CONSOLE.rglob("templates/**/*.html"):
        page = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", page), path.name
