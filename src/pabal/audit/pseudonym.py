"""Pseudonyms for the audit log, which cannot be erased."""

import hashlib

CONVERSATION_PSEUDONYM_LENGTH = 16
"""Hex digits: enough to tell conversations apart. Kakao's keys are long and random, so they cannot be guessed."""
PERSON_PSEUDONYM_LENGTH = 8
"""Hex digits: enough to tell people apart. Discord's ids can be enumerated, so many ids must share a pseudonym."""


def conversation_pseudonym(conversation_key: str) -> str:
    """The same for every entry of a conversation: with the key, its entries can be found even after it was erased."""
    return f"conversation:{hash_identifier(conversation_key)[:CONVERSATION_PSEUDONYM_LENGTH]}"


def person_pseudonym(person_id: str) -> str:
    """The same for every entry of a person: with the id, their entries can be found even after they were erased."""
    return f"person:{hash_identifier(person_id)[:PERSON_PSEUDONYM_LENGTH]}"


def hash_identifier(identifier: str) -> str:
    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()
