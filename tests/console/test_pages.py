import re
from datetime import timedelta
from pathlib import Path

import pytest
from markupsafe import Markup, escape

from pabal.console import i18n
from pabal.console.format import display_name, format_age, format_user_agent, short_id

CONSOLE = Path(i18n.__file__).parent.parent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3.24, "3.2 s"), (240, "4 min"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_ages_are_shown_in_readable_units(seconds: float, text: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("order-1008", "order-1008"),
        ("01a1e3f5-339e-77a2-90ec-10b2ddc3d955", "01a1e3f5…c3d955"),
        ("conversation:8f14e45fceea167a5a36dedd4bea2543", "conversation:…ea2543"),
    ],
)
def test_an_id_in_a_list_is_shortened_with_the_full_id_as_title(name: str, text: str) -> None:
    assert short_id(name) == f'<code title="{name}">{text}</code>'


def test_only_names_that_contain_an_id_are_shortened() -> None:
    account = "account:01a1e3f5-339e-77a2-90ec-10b2ddc3d955"
    assert display_name(account) == f'<code title="{account}">account:…c3d955</code>'
    assert display_name("operator:somebody-with-a-long-name") == "operator:somebody-with-a-long-name"
    assert display_name("session:<b>") == "session:&lt;b&gt;"


@pytest.mark.parametrize(
    ("user_agent", "text"),
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
def test_user_agents_are_shown_as_browser_and_system(user_agent: str, text: str) -> None:
    assert format_user_agent(user_agent).striptags() == Markup(escape(text)).striptags()
    assert escape(user_agent) in format_user_agent(user_agent)


def test_no_page_uses_what_the_content_security_policy_forbids() -> None:
    for path in CONSOLE.rglob("templates/**/*.html"):
        page = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", page), path.name
