"""An envelope opens in its own cell, with its own key, unchanged; and nowhere else."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pabal.core.errors import Unreadable
from pabal.core.ids import new_id
from pabal.keys.envelope import Place, seal, unseal, written_with
from pabal.keys.key import Keys, Use
from pabal.keys.ring import Ring

RING = Ring(Keys.made(datetime.now(UTC)))
PLACE = Place("service_tokens", "access_token", UUID(int=7))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(texts)
def test_what_was_sealed_is_read_in_its_place(text: str) -> None:
    envelope = seal(RING, text, PLACE)

    assert unseal(RING, envelope, PLACE) == text
    assert envelope.startswith(written_with(RING.active(Use.ENCRYPTION)))
    assert seal(RING, text, PLACE) != envelope


@pytest.mark.parametrize(
    "other",
    [
        replace(PLACE, row=new_id()),
        replace(PLACE, column="refresh_token"),
        replace(PLACE, table="refresh_tokens"),
    ],
)
def test_copied_to_another_cell_it_does_not_open(other: Place) -> None:
    envelope = seal(RING, "a token", PLACE)

    with pytest.raises(Unreadable, match=str(other.row)):
        unseal(RING, envelope, other)


@settings(max_examples=20)
@given(texts)
def test_with_any_one_bit_changed_it_does_not_open(text: str) -> None:
    envelope = seal(RING, text, PLACE).encode()

    for bit in range(len(envelope) * 8):
        changed = bytearray(envelope)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unreadable):
            unseal(RING, changed.decode("latin-1"), PLACE)


@given(st.one_of(st.text(), st.text("v1.ea-_A", max_size=80)))
def test_anything_else_is_unreadable_and_nothing_worse(text: str) -> None:
    with pytest.raises(Unreadable):
        unseal(RING, text, PLACE)


@given(st.integers(0, 60))
def test_cut_short_or_longer_it_does_not_open(cut: int) -> None:
    envelope = seal(RING, "a token", PLACE)

    for changed in (envelope[: -cut - 1], envelope + "A" * (cut + 1), envelope + "="):
        with pytest.raises(Unreadable):
            unseal(RING, changed, PLACE)


def test_old_and_next_keys_open_and_a_removed_one_does_not() -> None:
    keys = Keys.made(datetime.now(UTC))
    envelope = seal(Ring(keys), "a token", PLACE)
    ahead = keys.rotated([Use.ENCRYPTION], datetime.now(UTC))

    assert unseal(Ring(ahead), envelope, PLACE) == "a token"
    assert unseal(Ring(keys), seal(Ring(ahead), "a token", PLACE), PLACE) == "a token"  # one rotation behind
    removed = ahead.without(keys.active(Use.ENCRYPTION).id)
    with pytest.raises(Unreadable, match="no key here opens"):
        unseal(Ring(removed), envelope, PLACE)


def test_a_key_for_something_else_opens_nothing() -> None:
    encryption, signing = RING.active(Use.ENCRYPTION), RING.active(Use.SIGNING)
    swapped = {encryption.id: replace(encryption, id=signing.id), signing.id: replace(signing, id=encryption.id)}
    confused = Ring(Keys(tuple(swapped.get(key.id, key) for key in RING.keys.every)))

    with pytest.raises(Unreadable, match="no key here opens"):
        unseal(confused, seal(RING, "a token", PLACE), PLACE)


def test_the_error_shows_neither_the_text_nor_the_key() -> None:
    envelope = seal(RING, "a token", PLACE)

    with pytest.raises(Unreadable) as refused:
        unseal(RING, envelope, replace(PLACE, row=new_id()))

    assert envelope not in str(refused.value)
    assert refused.value.__suppress_context__
