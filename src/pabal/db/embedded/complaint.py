"""Why PostgreSQL gave up, from what it printed."""

import re

FULL = "No space left on device"
NO_PORT = "could not create any TCP/IP sockets"
STILL_DYING = "is still in use"  # children of a killed server hold its shared memory until they notice

BIND = re.compile(r"could not bind .*")
BLAME = re.compile(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)")


def complaint(output: str) -> str:
    """Return the one line of the output that says why.

    Only lines PostgreSQL marks as errors are quoted: the statement it prints beside them may hold a password.
    """
    if FULL in output:
        return f"the disk is full ({FULL})"
    if NO_PORT in output and (refusal := BIND.search(output)):
        return refusal[0]
    blamed = BLAME.findall(output)
    if blamed:
        return blamed[-1]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
