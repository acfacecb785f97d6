"""`pabal upgrade-database`."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pabal.cli.options import Json
from pabal.cli.output import print_json, print_text, progress_bar
from pabal.core.errors import Conflict
from pabal.core.log import configure_logging
from pabal.db import embedded
from pabal.db.backup.upgrade import plan_upgrade, upgrade_cluster
from pabal.settings import load_settings

OldBin = Annotated[
    Path | None,
    Parameter(
        name="--old-bin",
        help="Directory of the old version's programs. Default: PABAL_PG_BIN if it is of that version, else installed.",
    ),
]


def upgrade_database_command(
    *,
    old_bin: OldBin = None,
    data_dir: Annotated[Path | None, Parameter(help="Directory of the embedded database. [PABAL_DATA_DIR]")] = None,
    json: Json = False,
) -> None:
    """Load the embedded database of an older PostgreSQL into the current version.

    The hub must not run. The old data directory is kept unchanged, as a copy to go back to.
    """
    settings = load_settings(data_dir=data_dir)
    configure_logging(settings.log_level, settings.log_format)
    if settings.database_url is not None:
        raise Conflict("PABAL_DATABASE_URL is set: only the embedded database can be upgraded")
    upgrade = plan_upgrade(settings.data_dir.absolute(), settings.pg_bin, old_bin)
    user = embedded.ensure_server_user(settings.pg_user)
    with ExitStack() as stack:

        def begin(tables: int) -> Callable[[int], None]:
            return stack.enter_context(progress_bar("loading tables", tables))

        rows = asyncio.run(upgrade_cluster(upgrade, user, begin))
    if json:
        print_json({"from": upgrade.old.major, "to": upgrade.new.major, "rows": rows})
        return
    print_text(f"{rows} rows loaded from {upgrade.old.data_dir} into {upgrade.new.data_dir} and counted")
    print_text(f"{upgrade.old.data_dir} is unchanged: delete it when the hub runs well on the new one.")
