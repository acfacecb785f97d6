"""The Python client under its former name. It is a distribution of its own: `pabal_client`, in `clients/python`."""

import pabal_client
from pabal_client import *  # noqa: F403 the same names

__all__: list[str] = []
__all__ += pabal_client.__all__
