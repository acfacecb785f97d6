"""PostgreSQL as a child process: the same engine on a laptop as in production, with nothing to install."""

from pabal.db.embedded.endpoint import Endpoint
from pabal.db.embedded.server import Server, attach, start

__all__ = ["Endpoint", "Server", "attach", "start"]
