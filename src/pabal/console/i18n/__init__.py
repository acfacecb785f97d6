"""Everything the console says, in Korean and in English."""

from typing import Literal

from starlette.requests import Request

from pabal.console.i18n import (
    audit,
    chat,
    dead_letters,
    events,
    health,
    layout,
    messages,
    notifications,
    overview,
    person,
    portal,
    profile,
    relay,
    services,
    trace,
)
from pabal.core.messages import Message

Language = Literal["ko", "en"]
LANGUAGE_COOKIE = "pabal_language"
"""The cookie of whoever chose one."""

PARTS = (
    layout,
    overview,
    health,
    person,
    notifications,
    events,
    dead_letters,
    trace,
    services,
    audit,
    profile,
    relay,
    portal,
    chat,
)
TEXTS: dict[str, tuple[str, str]] = {key: said for part in PARTS for key, said in part.SAYS.items()}


class Translator:
    """The console's words in one language: `t("waiting")`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self._column = 0 if language == "ko" else 1

    def __call__(self, text_id: str) -> str:
        return TEXTS[text_id][self._column]

    def translate(self, message: object) -> str:
        """A sentence of a story in this language; what is no phrase stays as it is."""
        if not isinstance(message, Message):
            return str(message)
        return self._translate_pattern(message.pattern).format(*map(self.translate, message.parts))

    def _translate_pattern(self, pattern: str) -> str:
        if pattern in messages.WORDS:
            return messages.WORDS[pattern][self._column]
        return messages.KOREAN.get(pattern, pattern) if self.language == "ko" else pattern

    @property
    def other_language(self) -> Language:
        return "en" if self.language == "ko" else "ko"


def translator_for(request: Request) -> Translator:
    """The language somebody chose, or the one their browser asks for first."""
    chosen = request.cookies.get(LANGUAGE_COOKIE)
    if chosen in {"ko", "en"}:
        return Translator("ko" if chosen == "ko" else "en")
    for asked in request.headers.get("accept-language", "").split(","):
        language = asked.split(";")[0].strip().lower()[:2]
        if language in {"ko", "en"}:
            return Translator("ko" if language == "ko" else "en")
    return Translator("ko")
