"""Rows with envelopes, inserted by plain SQL."""

from uuid import UUID

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from pabal.keys.envelope import EnvelopeLocation, encrypt_envelope
from pabal.keys.keyring import KeyRing
from pabal.keys.rotation import ENVELOPE_COLUMNS
from support.clusters import open_connection

INSERT_ACCESS_TOKEN = """
insert into public.service_tokens (id, service_name, access_token, token_hash, expires_at)
values ($1, 'minu_find', $2, $1::uuid::text, now() + interval '1 hour')
"""
INSERT_REFRESH_TOKEN = """
insert into public.refresh_tokens (id, service_token_id, refresh_token, token_hash, expires_at)
values ($1, $2, $3, $1::uuid::text, now() + interval '7 days')
"""

INSERT_SECRETS = """
insert into pabal.subscriptions
    (id, service_name, mode, event_types, url, secret, previous_secret, previous_secret_until)
values ($1, 'minu_find', 'push', '{order.*}', 'https://example.org/', $2, $3, now() + interval '1 day')
"""


async def insert_access_token(database_urls: DatabaseUrls, row: UUID, envelope: str) -> None:
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        await conn.execute(INSERT_ACCESS_TOKEN, row, envelope)


async def insert_envelopes(database_urls: DatabaseUrls, ring: KeyRing, count: int) -> dict[EnvelopeLocation, str]:
    """Insert tokens of both kinds and secrets under the active key; returns their plain texts by location."""
    texts: dict[EnvelopeLocation, str] = {}
    data_keys: list[tuple[UUID, str]] = []
    access: list[tuple[UUID, str]] = []
    refresh: list[tuple[UUID, UUID, str]] = []
    secrets: list[tuple[UUID, str, str]] = []
    for number in range(count):
        first, second, third = new_id(), new_id(), new_id()
        a, r = (
            EnvelopeLocation("service_tokens", "access_token", first),
            EnvelopeLocation("refresh_tokens", "refresh_token", second),
        )
        s, p = (EnvelopeLocation("pabal.subscriptions", column, third) for column in ("secret", "previous_secret"))
        texts |= {a: f"access {number}", r: f"refresh {number}", s: f"secret {number}", p: f"previous {number}"}
        d = EnvelopeLocation("pabal.relay_keys", "data_key", first)
        texts[d] = f"data key {number}"
        data_keys.append((first, encrypt_envelope(ring, texts[d], d)))
        access.append((first, encrypt_envelope(ring, texts[a], a)))
        refresh.append((second, first, encrypt_envelope(ring, texts[r], r)))
        secrets.append((third, encrypt_envelope(ring, texts[s], s), encrypt_envelope(ring, texts[p], p)))
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        await conn.executemany(INSERT_ACCESS_TOKEN, access)
        await conn.executemany(INSERT_REFRESH_TOKEN, refresh)
        await conn.executemany(INSERT_SECRETS, secrets)
        await conn.executemany("insert into pabal.relay_keys (id, data_key) values ($1, $2)", data_keys)
    return texts


async def load_envelopes(database_urls: DatabaseUrls) -> dict[EnvelopeLocation, str]:
    """All envelopes by location."""
    envelopes: dict[EnvelopeLocation, str] = {}
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        for column in ENVELOPE_COLUMNS:
            rows = await conn.fetch(f"select id, {column.name} from {column.table}")
            envelopes |= {
                EnvelopeLocation(column.table, column.name, row[0]): row[1] for row in rows if row[1] is not None
            }
    return envelopes
