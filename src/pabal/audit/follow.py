"""Follow the chain of seals from the head that this host knows to its end.

Every seal after the known one is checked, so that a copy of an old seal cannot become the known head.
"""

from dataclasses import dataclass
from datetime import timedelta

from pabal.audit.chain_head import START_OF_CHAIN, ChainHead
from pabal.audit.seal import seal_digest
from pabal.audit.verify import Seal, list_seals
from pabal.core.messages import Message
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.keyring import KeyRing

Q = load_queries(__file__)

MAX_FOLLOWED_SEALS = 2_000
"""How many seals are checked at a time. A host that was away for long catches up in several steps."""


@dataclass(frozen=True, slots=True)
class KnownSeal:
    """The known seal as the database has it; None if it has no such seal."""

    id: int | None
    digest: str | None
    has_first_seal: bool


@dataclass(frozen=True, slots=True)
class FollowedChain:
    """How far the chain was checked, and whether that is its end.

    With a `problem`, the chain is not the one that this host knows. `missing_start` is the loss of the first seals.
    """

    head: ChainHead
    is_end: bool
    problem: Message | None = None
    missing_start: Message | None = None

    @property
    def finding(self) -> Message | None:
        return self.problem or self.missing_start


async def follow_chain(
    tx: Tx, key_ring: KeyRing, known: ChainHead | None, max_seals: int = MAX_FOLLOWED_SEALS
) -> FollowedChain:
    """Check that the chain contains `known`, and the next `max_seals` after it.

    Without a known head, the end of the chain is taken for it.
    """
    start = known or await last_chain_head(tx)
    seal = await tx.one(KnownSeal, Q.known_seal, id=start.id)
    missing_start = None if seal.has_first_seal else Message("the first seals of the audit log were removed")
    if start != START_OF_CHAIN and (seal.id, seal.digest) != (start.id, start.digest):
        problem = Message("the audit log does not contain seal {}, which this host has seen", start)
        return FollowedChain(start, is_end=False, problem=problem, missing_start=missing_start)
    seals = await list_seals(tx, after=start.id, limit=max_seals)
    head = start
    for next_seal in seals:
        if problem := find_seal_problem(key_ring, head, next_seal):
            return FollowedChain(head, is_end=False, problem=problem, missing_start=missing_start)
        head = next_seal.head
    return FollowedChain(head, is_end=len(seals) < max_seals, missing_start=missing_start)


def find_seal_problem(key_ring: KeyRing, head: ChainHead, seal: Seal) -> Message | None:
    """What is wrong with the seal after `head`; None if it is valid."""
    if (seal.previous or b"").hex() != head.digest:
        return Message("seal {} of the audit log does not continue seal {}", seal.id, head.id)
    key = key_ring.find(seal.key_id)
    if key is None:
        return Message("seal {} of the audit log cannot be checked: its key {} is unknown", seal.id, seal.key_id)
    if seal_digest(key, seal.content()) != seal.digest:
        return Message("seal {} of the audit log was changed", seal.id)
    return None


async def last_chain_head(tx: Tx) -> ChainHead:
    return await tx.maybe(ChainHead, Q.last_seal) or START_OF_CHAIN


async def unsealed_for(tx: Tx) -> timedelta:
    """How long the first row after the last seal has waited for its seal."""
    return await tx.value(Q.unsealed_for)
