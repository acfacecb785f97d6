"""PostgreSQL as a child process, so that `pabal up` needs no installed database."""

from pabal.db.embedded.cluster import ServerAddress
from pabal.db.embedded.server import EmbeddedServer, attach_embedded_server, start_embedded_server
from pabal.db.embedded.system_user import ensure_server_user

__all__ = ["EmbeddedServer", "ServerAddress", "attach_embedded_server", "ensure_server_user", "start_embedded_server"]
