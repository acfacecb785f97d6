"""What a person is called where nothing can be taken back out: the audit log."""

import hashlib

PERSON_PSEUDONYM_LENGTH = 8
"""Hex digits: enough to tell people apart. Discord's ids can be counted through, so no more than many of them share."""


def person_pseudonym(person_id: str) -> str:
    """Always the same for a person, so that whoever knows their id finds what was done to them, erased or not."""
    return f"person:{hashlib.sha256(person_id.encode('utf-8', 'surrogatepass')).hexdigest()[:PERSON_PSEUDONYM_LENGTH]}"
