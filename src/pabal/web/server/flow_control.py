"""Flow control: when a connection may read again."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class GuardedFlowControl(FlowControl):
    """Flow control that resumes reading only if the connection may read."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self.may_read = may_read

    def resume_reading(self) -> None:
        if self.read_paused and self.may_read():
            super().resume_reading()
