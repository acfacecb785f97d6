"""The processes of a supervised hub, and their metrics."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2

from support.pabal_process import PROCESS_TIMEOUT, RunningHub
from support.wait import wait_until


def child_pids(pid: int) -> list[int]:
    """The children of a process; none if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than an entry that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_log(hub: RunningHub) -> list[dict[str, Any]]:
    """The complete lines of the log. The last one may be half written."""
    lines = hub.log.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def log_lines(hub: RunningHub, event: str) -> list[dict[str, Any]]:
    return [line for line in read_log(hub) if line.get("event") == event]


async def wait_for_lines(hub: RunningHub, event: str, count: int) -> None:
    await wait_until(lambda: len(log_lines(hub, event)) >= count, PROCESS_TIMEOUT)


async def wait_for_children(hub: RunningHub, count: int) -> list[int]:
    """Wait until this many children have reported that they accept requests; returns the running ones."""
    await wait_for_lines(hub, "process ready", count)
    ready = {line["pid"] for line in log_lines(hub, "process ready")}
    return [pid for pid in child_pids(hub.process.pid) if pid in ready]


def count_requests(address: str, route: str) -> int:
    """How many GET requests of a route /metrics counts."""
    text = httpx2.get(f"{address}/metrics").text
    pattern = rf'^http_server_request_duration_seconds_count\{{.*http_route="{re.escape(route)}"\}} (\S+)$'
    return sum(int(float(value)) for value in re.findall(pattern, text, re.MULTILINE))
