"""The data directory of an embedded server with migrated databases: copied, because creating it takes seconds."""

import asyncio
from pathlib import Path

from pabal.db import embedded
from support.adopted import create_hub_database
from support.clusters import open_connection
from support.databases import url_with_database, weaken_passwords
from support.images import copy_image

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
TEMPLATE = "template_database"


def copy_migrated_server(data_dir: Path) -> None:
    """Fill an empty directory with a stopped server. Its own database is migrated, and `TEMPLATE` to be copied."""
    copy_image("server", data_dir, create_migrated_server)


def create_migrated_server(data_dir: Path) -> None:
    with embedded.start_embedded_server(data_dir, options=FAST) as server:
        weaken_passwords(server.address)
        asyncio.run(create_databases(server.address))
    (data_dir / "postgres.port").unlink()  # each copy chooses a port of its own


async def create_databases(address: embedded.ServerAddress) -> None:
    async with open_connection(url_with_database(address.owner_url, "postgres")) as server:
        await server.execute(f"create database {TEMPLATE}")
        await create_hub_database(url_with_database(address.owner_url, TEMPLATE), login="pabal_hub")
        await server.execute(f"drop database {address.database}")
        await server.execute(f"create database {address.database} template {TEMPLATE}")
