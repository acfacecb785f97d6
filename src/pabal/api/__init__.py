"""The HTTP API: one module of routes per resource, listed in `routes`."""
