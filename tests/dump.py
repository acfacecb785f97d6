"""Everything in a database, as anybody who gets hold of a backup would see it."""

import asyncio

from clusters import binaries
from pabal.hub import DatabaseUrls


async def dumped(roads: DatabaseUrls) -> bytes:
    programs = binaries("wheel")
    assert programs is not None
    dump = await asyncio.create_subprocess_exec(
        programs / "pg_dump", "--dbname", roads.direct or roads.main, "--inserts", stdout=asyncio.subprocess.PIPE
    )
    text, _ = await dump.communicate()
    assert dump.returncode == 0
    return text
