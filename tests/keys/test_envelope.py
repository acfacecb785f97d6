"""An envelope can be decrypted only unchanged, in its own cell, and with its own key."""

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
LOCATION = EnvelopeLocation("service_tokens", "access_token", UUID(int=7))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(texts)
def test_an_envelope_is_decrypted_in_its_cell(text: str) -> None:
    envelope = encrypt_envelope(RING, text, LOCATION)

    assert decrypt_envelope(RING, envelope, LOCATION) == text
    assert envelope.startswith(envelope_prefix(RING.active(KeyUse.ENCRYPTION)))
    assert encrypt_envelope(RING, text, LOCATION) != envelope


@pytest.mark.parametrize(
    "other",
    [
        replace(LOCATION, row=new_id()),
        replace(LOCATION, column="refresh_token"),
        replace(LOCATION, table="refresh_tokens"),
    ],
)
def test_a_copy_in_another_cell_cannot_be_decrypted(other: EnvelopeLocation) -> None:
    envelope = encrypt_envelope(RING, "a token", LOCATION)

    with pytest.raises(DecryptionError, match=str(other.row)):
        decrypt_envelope(RING, envelope, other)


@settings(max_examples=20)
@given(texts)
def test_a_changed_bit_prevents_decryption(text: str) -> None:
    envelope = encrypt_envelope(RING, text, LOCATION).encode()

    for bit in range(len(envelope) * 8):
        changed = bytearray(envelope)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed.decode("latin-1"), LOCATION)


@given(st.one_of(st.text(), st.text("v1.ea-_A", max_size=80)))
def test_any_other_text_raises_decryption_error(text: str) -> None:
    with pytest.raises(DecryptionError):
        decrypt_envelope(RING, text, LOCATION)


@given(st.integers(0, 60))
def test_a_truncated_or_extended_envelope_cannot_be_decrypted(length: int) -> None:
    envelope = encrypt_envelope(RING, "a token", LOCATION)

    for changed in (envelope[: -length - 1], envelope + "A" * (length + 1), envelope + "="):
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed, LOCATION)


def test_old_and_next_keys_decrypt_and_a_removed_one_does_not() -> None:
    keys = KeySet.generate(datetime.now(UTC))
    envelope = encrypt_envelope(KeyRing(keys), "a token", LOCATION)
    rotated = keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC))

    assert decrypt_envelope(KeyRing(rotated), envelope, LOCATION) == "a token"
    # A process that is one rotation behind has the key as its next key.
    envelope_of_rotated = encrypt_envelope(KeyRing(rotated), "a token", LOCATION)
    assert decrypt_envelope(KeyRing(keys), envelope_of_rotated, LOCATION) == "a token"
    without_old_key = rotated.without(keys.active(KeyUse.ENCRYPTION).id)
    with pytest.raises(DecryptionError, match="no key decrypts"):
        decrypt_envelope(KeyRing(without_old_key), envelope, LOCATION)


def test_a_key_with_another_use_does_not_decrypt() -> None:
    encryption, signing = RING.active(KeyUse.ENCRYPTION), RING.active(KeyUse.SIGNING)
    swapped = {encryption.id: replace(encryption, id=signing.id), signing.id: replace(signing, id=encryption.id)}
    swapped_ring = KeyRing(KeySet(tuple(swapped.get(key.id, key) for key in RING.keys.all_keys)))

    with pytest.raises(DecryptionError, match="no key decrypts"):
        decrypt_envelope(swapped_ring, encrypt_envelope(RING, "a token", LOCATION), LOCATION)


def test_the_error_shows_neither_the_text_nor_the_key() -> None:
    envelope = encrypt_envelope(RING, "a token", LOCATION)

    with pytest.raises(DecryptionError) as error:
        decrypt_envelope(RING, envelope, replace(LOCATION, row=new_id()))

    assert envelope not in str(error.value)
    assert error.value.__suppress_context__
