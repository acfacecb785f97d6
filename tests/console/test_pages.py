import re
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.console import figures, texts

CONSOLE = Path(texts.__file__).parent.parent


@pytest.mark.parametrize(
    ("seconds", "read"),
    [(0, "0.0 s"), (3.24, "3.2 s"), (240, "4 min"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_an_age_is_written_as_a_person_says_it(seconds: float, read: str) -> None:
    assert figures.age(timedelta(seconds=seconds)) == read


def test_every_text_is_there_in_both_languages_and_used() -> None:
    """A key may be put together: `t("room " ~ name)` uses all that begin so, `t(lane ~ " carries")` all that end so."""
    pages = "".join(
        path.read_text()
        for path in [*CONSOLE.rglob("templates/**/*.html"), *CONSOLE.glob("*.py"), *CONSOLE.glob("[!t]*/*.py")]
    )
    asked = set(re.findall(r"""\bt\(["']([^"']+)["']\)""", pages))
    written = {*asked, *re.findall(r"""["']([\w ]+)["']""", pages)}
    tagged = [f"{kind} " for kind in re.findall(r"""\btag\(t, ["']([a-z]+)["'],""", pages)]
    begins = (*re.findall(r"""["']([a-z]+ )(?:["'] ~|\{)""", pages), *tagged)
    ends = tuple(re.findall(r"""(?:~ ["']|\})( [a-z ]+)["']""", pages))
    keys = texts.TEXTS.keys()

    assert asked <= keys
    assert [key for key in keys - written if not key.startswith(begins) and not key.endswith(ends)] == []
    assert all(korean and english for korean, english in texts.TEXTS.values())
    assert sum(len(part.SAYS) for part in texts.PARTS) == len(texts.TEXTS), "two pages use one key for two things"


def test_no_page_needs_what_the_policy_forbids() -> None:
    for path in CONSOLE.rglob("templates/**/*.html"):
        page = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", page), path.name
