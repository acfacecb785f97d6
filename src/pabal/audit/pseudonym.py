"""What a conversation is called where nothing can be taken back out: the audit log."""

import hashlib

CONVERSATION_PSEUDONYM_LENGTH = 16
"""Hex digits: enough to tell conversations apart. Kakao's keys are long and random: nobody guesses one from these."""


def conversation_pseudonym(conversation_key: str) -> str:
    """Always the same for a conversation, so that whoever knows its key finds what was done to it, erased or not."""
    return f"conversation:{hashlib.sha256(conversation_key.encode('utf-8', 'surrogatepass')).hexdigest()[:CONVERSATION_PSEUDONYM_LENGTH]}"  # noqa: E501


PERSON_PSEUDONYM_LENGTH = 8
"""Hex digits: enough to tell people apart. Discord's ids can be counted through, so no more than many of them share."""


def person_pseudonym(person_id: str) -> str:
    """Always the same for a person, so that whoever knows their id finds what was done to them, erased or not."""
    return f"person:{hashlib.sha256(person_id.encode('utf-8', 'surrogatepass')).hexdigest()[:PERSON_PSEUDONYM_LENGTH]}"
