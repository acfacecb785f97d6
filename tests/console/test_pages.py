import re
from datetime import timedelta
from pathlib import Path

import pytest
from markupsafe import Markup, escape

from pabal.console import i18n
from pabal.console.format import display_name, format_age, format_user_agent, short_id

CONSOLE = Path(i18n.__file__).parent.parent


@pytest.mark.parametrize(
    ("seconds", "read"),
    [(0, "0 s"), (3.24, "3.2 s"), (240, "4 min"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_an_age_is_written_as_a_person_says_it(seconds: float, read: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == read


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("order-1008", "order-1008"),
        ("01a1e3f5-339e-77a2-90ec-10b2ddc3d955", "01a1e3f5…c3d955"),
        ("conversation:8f14e45fceea167a5a36dedd4bea2543", "conversation:…ea2543"),
    ],
)
def test_an_id_in_a_list_is_cut_and_all_of_it_is_in_its_title(name: str, read: str) -> None:
    assert short_id(name) == f'<code title="{name}">{read}</code>'


def test_only_who_is_called_after_an_id_is_cut_like_one() -> None:
    account = "account:01a1e3f5-339e-77a2-90ec-10b2ddc3d955"
    assert display_name(account) == f'<code title="{account}">account:…c3d955</code>'
    assert display_name("operator:somebody-with-a-long-name") == "operator:somebody-with-a-long-name"
    assert display_name("session:<b>") == "session:&lt;b&gt;"


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/156.0.0.0 Safari/537.36",
            "Chrome 156 · Linux",
        ),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/120.0.0.0 Safari/537.36 Edg/119.0.0.0", "Edge 119 · Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Version/17.0 Safari/604.1", "Safari 17 · iPhone"),
        ("Firefox/121.0", "Firefox 121"),
        ("curl/8.5 <b>", "curl/8.5 <b>"),
    ],
)
def test_a_browser_is_named_as_its_user_would(said: str, read: str) -> None:
    assert format_user_agent(said).striptags() == Markup(escape(read)).striptags()
    assert escape(said) in format_user_agent(said)


def test_no_page_needs_what_the_policy_forbids() -> None:
    for path in CONSOLE.rglob("templates/**/*.html"):
        page = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", page), path.name
