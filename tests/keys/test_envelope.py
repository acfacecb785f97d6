"""An envelope opens in its own cell, with its own key, unchanged; and nowhere else."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pabal.core.errors import DecryptionError
from pabal.core.ids import new_id
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope, envelope_prefix
from pabal.keys.key import KeySet, KeyUse
from pabal.keys.keyring import KeyRing

RING = KeyRing(KeySet.generate(datetime.now(UTC)))
PLACE = EnvelopeLocation("service_tokens", "access_token", UUID(int=7))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(texts)
def test_what_was_sealed_is_read_in_its_place(text: str) -> None:
    envelope = encrypt_envelope(RING, text, PLACE)

    assert decrypt_envelope(RING, envelope, PLACE) == text
    assert envelope.startswith(envelope_prefix(RING.active(KeyUse.ENCRYPTION)))
    assert encrypt_envelope(RING, text, PLACE) != envelope


@pytest.mark.parametrize(
    "other",
    [
        replace(PLACE, row=new_id()),
        replace(PLACE, column="refresh_token"),
        replace(PLACE, table="refresh_tokens"),
    ],
)
def test_copied_to_another_cell_it_does_not_open(other: EnvelopeLocation) -> None:
    envelope = encrypt_envelope(RING, "a token", PLACE)

    with pytest.raises(DecryptionError, match=str(other.row)):
        decrypt_envelope(RING, envelope, other)


@settings(max_examples=20)
@given(texts)
def test_with_any_one_bit_changed_it_does_not_open(text: str) -> None:
    envelope = encrypt_envelope(RING, text, PLACE).encode()

    for bit in range(len(envelope) * 8):
        changed = bytearray(envelope)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed.decode("latin-1"), PLACE)


@given(st.one_of(st.text(), st.text("v1.ea-_A", max_size=80)))
def test_anything_else_is_unreadable_and_nothing_worse(text: str) -> None:
    with pytest.raises(DecryptionError):
        decrypt_envelope(RING, text, PLACE)


@given(st.integers(0, 60))
def test_cut_short_or_longer_it_does_not_open(cut: int) -> None:
    envelope = encrypt_envelope(RING, "a token", PLACE)

    for changed in (envelope[: -cut - 1], envelope + "A" * (cut + 1), envelope + "="):
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed, PLACE)


def test_old_and_next_keys_open_and_a_removed_one_does_not() -> None:
    keys = KeySet.generate(datetime.now(UTC))
    envelope = encrypt_envelope(KeyRing(keys), "a token", PLACE)
    ahead = keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC))

    assert decrypt_envelope(KeyRing(ahead), envelope, PLACE) == "a token"
    assert (
        decrypt_envelope(KeyRing(keys), encrypt_envelope(KeyRing(ahead), "a token", PLACE), PLACE) == "a token"
    )  # one rotation behind
    removed = ahead.without(keys.active(KeyUse.ENCRYPTION).id)
    with pytest.raises(DecryptionError, match="no key decrypts"):
        decrypt_envelope(KeyRing(removed), envelope, PLACE)


def test_a_key_for_something_else_opens_nothing() -> None:
    encryption, signing = RING.active(KeyUse.ENCRYPTION), RING.active(KeyUse.SIGNING)
    swapped = {encryption.id: replace(encryption, id=signing.id), signing.id: replace(signing, id=encryption.id)}
    confused = KeyRing(KeySet(tuple(swapped.get(key.id, key) for key in RING.keys.all_keys)))

    with pytest.raises(DecryptionError, match="no key decrypts"):
        decrypt_envelope(confused, encrypt_envelope(RING, "a token", PLACE), PLACE)


def test_the_error_shows_neither_the_text_nor_the_key() -> None:
    envelope = encrypt_envelope(RING, "a token", PLACE)

    with pytest.raises(DecryptionError) as refused:
        decrypt_envelope(RING, envelope, replace(PLACE, row=new_id()))

    assert envelope not in str(refused.value)
    assert refused.value.__suppress_context__
