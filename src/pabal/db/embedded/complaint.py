"""Why PostgreSQL gave up, from what it printed."""

import re

DISK_FULL_TEXT = "No space left on device"
PORT_UNAVAILABLE_TEXT = "could not create any TCP/IP sockets"
SHARED_MEMORY_IN_USE_TEXT = "is still in use"  # children of a killed server hold its shared memory until they notice

BIND_ERROR = re.compile(r"could not bind .*")
ERROR_LINE = re.compile(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)")


def extract_error(output: str) -> str:
    """Return the one line of the output that says why.

    Only lines PostgreSQL marks as errors are quoted: the statement it prints beside them may hold a password.
    """
    if DISK_FULL_TEXT in output:
        return f"the disk is full ({DISK_FULL_TEXT})"
    if PORT_UNAVAILABLE_TEXT in output and (refusal := BIND_ERROR.search(output)):
        return refusal[0]
    blamed = ERROR_LINE.findall(output)
    if blamed:
        return blamed[-1]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
