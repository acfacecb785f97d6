"""How pairing codes are spelled, and how they are read from whatever a person types."""

import re
import secrets
import unicodedata

CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""No letter that is mistaken for another."""
CODE_HALF_LENGTH = 4
CODE_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015\u2212]+")
"""Telephones turn a dash into all kinds of lines."""
CODE_PATTERN = re.compile(rf"[{CODE_ALPHABET}]{{{2 * CODE_HALF_LENGTH}}}")


def random_pairing_code() -> str:
    """Some forty bits: enough where five wrong ones are too many."""
    return format_pairing_code("".join(secrets.choice(CODE_ALPHABET) for _ in range(2 * CODE_HALF_LENGTH)))


def parse_pairing_code(text: str) -> str | None:
    """The code as it is stored, XXXX-XXXX; None for what cannot be one."""
    letters = CODE_SEPARATORS.sub("", unicodedata.normalize("NFKC", text)).upper()
    return format_pairing_code(letters) if CODE_PATTERN.fullmatch(letters) else None


def format_pairing_code(letters: str) -> str:
    return f"{letters[:CODE_HALF_LENGTH]}-{letters[CODE_HALF_LENGTH:]}"
