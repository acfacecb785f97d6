"""Texts of the console in Korean and English.

Each language has a folder of TOML files, one per page. A text has a flat id that begins with the name of its file, such
as `dead_letters.replay.confirm_many`, and named placeholders. `messages.toml` translates what traces, explanations and
the doctor say: column values by the value, sentences by their English pattern.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup
from starlette.requests import Request

from pabal.core.messages import Message
from pabal.web.cookies import read_cookie

Language = Literal["ko", "en"]
LANGUAGES: tuple[Language, ...] = ("ko", "en")
LANGUAGE_COOKIE = "pabal_language"
"""Remembers the language a visitor switched to."""
MESSAGES_FILE = "messages.toml"
SINGULAR_SUFFIX = "_one"
"""`x_one` is the text of `x` for a count of 1. Only English has such texts."""


def load_texts(language: Language) -> dict[str, str]:
    """Read the texts of a language by their flat ids."""
    texts: dict[str, str] = {}
    for path in sorted((Path(__file__).parent / language).glob("*.toml")):
        if path.name != MESSAGES_FILE:
            texts.update(flatten_texts(tomllib.loads(path.read_text("utf-8"))))
    return texts


def flatten_texts(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_texts(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value


def load_messages(language: Language) -> dict[str, str]:
    """Read the translations of message patterns. English has only those of column values."""
    tables = tomllib.loads((Path(__file__).parent / language / MESSAGES_FILE).read_text("utf-8"))
    return {pattern: text for table in tables.values() for pattern, text in table.items()}


TEXTS = {language: load_texts(language) for language in LANGUAGES}
MESSAGES = {language: load_messages(language) for language in LANGUAGES}


class Translator:
    """Looks up texts in one language: `t("events.cancel.done", count=3)`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self._texts = TEXTS[language]
        self._messages = MESSAGES[language]

    def __call__(self, text_id: str, /, **values: object) -> str:
        """Return a text with its placeholders filled in. A `count` of 1 selects the singular, where there is one.

        With markup among the values, the result is markup and the other values are escaped.
        """
        text = self._texts[text_id]
        if values.get("count") == 1:
            text = self._texts.get(text_id + SINGULAR_SUFFIX, text)
        if any(isinstance(value, Markup) for value in values.values()):
            text = Markup(text)  # noqa: S704 our own text; its format escapes the other values
        return text.format(**self._format_values(values))

    def variant(self, prefix: str, name: object) -> str:
        """Return the text of one value of a closed set, such as a status: `t.variant("events.status", "failed")`."""
        return self(f"{prefix}.{name}")

    def has_variant(self, prefix: str, name: object) -> bool:
        return f"{prefix}.{name}" in self._texts

    def pattern(self, text_id: str) -> str:
        """Return a text with its placeholders, for callers that fill in markup."""
        return self._texts[text_id]

    def translate(self, message: object) -> str:
        """Translate a message and its parts. Anything else is only converted to a string."""
        if not isinstance(message, Message):
            return str(message)
        pattern = self._messages.get(message.pattern, message.pattern)
        return pattern.format(*map(self.translate, message.parts))

    def _format_values(self, values: Mapping[str, object]) -> dict[str, str]:
        return {name: self._format_value(value) for name, value in values.items()}

    def _format_value(self, value: object) -> str:
        if isinstance(value, int):
            return f"{value:,}"
        return value if isinstance(value, Markup) else self.translate(value)

    @property
    def other_language(self) -> Language:
        return "en" if self.language == "ko" else "ko"


def translator_for(request: Request) -> Translator:
    """Choose the language of the cookie, else the first supported one of `Accept-Language`, else Korean."""
    preferences = [read_cookie(request, LANGUAGE_COOKIE), *request.headers.get("accept-language", "").split(",")]
    for preference in preferences:
        code = preference.split(";")[0].strip().lower()[:2]
        for language in LANGUAGES:
            if code == language:
                return Translator(language)
    return Translator("ko")
