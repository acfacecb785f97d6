"""PostgreSQL as a child process, so that `pabal up` needs no installed database."""

from pabal.db.embedded.cluster import ServerAddress
from pabal.db.embedded.server import EmbeddedServer, attach_embedded_server, start_embedded_server

__all__ = ["EmbeddedServer", "ServerAddress", "attach_embedded_server", "start_embedded_server"]
