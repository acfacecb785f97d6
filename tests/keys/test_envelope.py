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
PLACE = EnvelopeLocation("service_tokens", "access_token", UUID(int=7))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(texts)
def test_an_envelope_is_decrypted_in_its_cell(text: str) -> None:
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
def test_a_copy_in_another_cell_cannot_be_decrypted(other: EnvelopeLocation) -> None:
    envelope = encrypt_envelope(RING, "a token", PLACE)

    with pytest.raises(DecryptionError, match=str(other.row)):
        decrypt_envelope(RING, envelope, other)


@settings(max_examples=20)
@given(texts)
def test_a_changed_bit_prevents_decryption(text: str) -> None:
    envelope = encrypt_envelope(RING, text, PLACE).encode()

    for bit in range(len(envelope) * 8):
        changed = bytearray(envelope)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed.decode("latin-1"), PLACE)


@given(st.one_of(st.text(), st.text("v1.ea-_A", max_size=80)))
def test_any_other_text_raises_decryption_error(text: str) -> None:
    with pytest.raises(DecryptionError):
        decrypt_envelope(RING, text, PLACE)


@given(st.integers(0, 60))
def test_a_truncated_or_extended_envelope_cannot_be_decrypted(cut: int) -> None:
    envelope = encrypt_envelope(RING, "a token", PLACE)

    for changed in (envelope[: -cut - 1], envelope + "A" * (cut + 1), envelope + "="):
        with pytest.raises(DecryptionError):
            decrypt_envelope(RING, changed, PLACE)


def test_old_and_next_keys_decrypt_and_a_removed_one_does_not() -> None:
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


def test_a_key_with_another_use_does_not_decrypt() -> None:
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
