"""Several server processes on one listening socket: the supervisor, and what its children do for it."""
