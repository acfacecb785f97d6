"""The addresses of one database."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """`main` is for queries and may lead through a pooler; `direct` bypasses it, for LISTEN and migrations."""

    main: str = field(repr=False)
    direct: str | None = field(repr=False)
