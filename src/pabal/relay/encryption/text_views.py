"""Audit entries for operators who read texts that are stored encrypted."""

from collections.abc import Collection
from datetime import timedelta

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.core.actor import Actor
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

VIEW_ACTION = "conversation.texts_viewed"
VIEW_PERIOD = timedelta(hours=1)
"""Pages reload themselves: an actor has one entry per conversation in this time."""


async def record_text_views(tx: Tx, actor: Actor, conversation_keys: Collection[str]) -> None:
    """Record that the actor reads decrypted texts of these conversations, before they are shown."""
    if conversation_keys:
        await tx.run(
            Q.record_text_views,
            actor=actor.name,
            action=VIEW_ACTION,
            subjects=[conversation_pseudonym(key) for key in {*conversation_keys}],
            client_ip=actor.client_ip or None,
            request_id=actor.request_id,
            period=VIEW_PERIOD,
        )
