"""The list of a dump's contents, which `pabal backup` compares with the tables."""

import asyncio

import pytest

from pabal.db.backup.contents import export_snapshot
from pabal.db.backup.programs import find_dump_programs, list_dump, stream_dump
from pabal.hub import DatabaseUrls
from support.clusters import Connection

pytestmark = pytest.mark.anyio

PIPE_BYTES = 65536
CREATE_TABLES = """
create schema other;
do $$ begin
  for number in 1 .. 600 loop
    execute format('create table other.a_table_with_a_long_name_%s (id int primary key)', number);
  end loop;
end $$;
create table other.large as select md5(random()::text) as text from generate_series(1, 20000)
"""


async def test_a_dump_and_a_list_that_are_larger_than_a_pipe_are_read(
    database_urls: DatabaseUrls, owner: Connection
) -> None:
    assert database_urls.direct
    await owner.execute(CREATE_TABLES)
    try:
        chunks: list[bytes] = []
        async with export_snapshot(database_urls.direct) as snapshot:
            programs = find_dump_programs(snapshot.contents.server_major, None)
            await asyncio.to_thread(stream_dump, programs, snapshot.address, snapshot.id, chunks.append, lambda _: None)
        contents = await asyncio.to_thread(list_dump, programs, iter(chunks))
    finally:
        await owner.execute("drop schema other cascade")

    assert min(sum(map(len, chunks)), len(contents)) > PIPE_BYTES
    assert contents.count(" TABLE DATA other ") == 601
