"""A dump of a database, as in a backup."""

import asyncio

from pabal.hub import DatabaseUrls
from support.clusters import postgres_bin_dir


async def dump_database(database_urls: DatabaseUrls) -> bytes:
    programs = postgres_bin_dir("wheel")
    assert programs is not None
    dump = await asyncio.create_subprocess_exec(
        programs / "pg_dump",
        "--dbname",
        database_urls.direct or database_urls.main,
        "--inserts",
        stdout=asyncio.subprocess.PIPE,
    )
    text, _ = await dump.communicate()
    assert dump.returncode == 0
    return text
