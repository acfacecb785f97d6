"""A database as Supabase brings it."""

from pathlib import Path

from support.clusters import Cluster, open_connection

SUPABASE = Path(__file__).parents[1] / "schema" / "existing" / "supabase.sql"
ADD_ROLE = "alter table public.profiles add column role text not null default 'user'"
"""What Pabal needs of its table of profiles."""


async def supabase_database(server: Cluster) -> str:
    """Create the database and return the URL of its owner, who is no superuser."""
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute(SUPABASE.read_text("utf-8"))
    return server.url(url.rpartition("/")[2], user="postgres")
