"""How pairing codes are spelled, and how they are read from whatever a person types."""

import re
import secrets
import unicodedata

ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""No letter that is mistaken for another."""
HALF = 4
BETWEEN = re.compile(r"[\s\-\u2010-\u2015\u2212]+")
"""Telephones turn a dash into all kinds of lines."""
WHOLE = re.compile(rf"[{ALPHABET}]{{{2 * HALF}}}")


def new_code() -> str:
    """Some forty bits: enough where five wrong ones are too many."""
    return spelled("".join(secrets.choice(ALPHABET) for _ in range(2 * HALF)))


def code_in(text: str) -> str | None:
    """The code as it is stored, XXXX-XXXX; None for what cannot be one."""
    letters = BETWEEN.sub("", unicodedata.normalize("NFKC", text)).upper()
    return spelled(letters) if WHOLE.fullmatch(letters) else None


def spelled(letters: str) -> str:
    return f"{letters[:HALF]}-{letters[HALF:]}"
