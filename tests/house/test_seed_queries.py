"""The eight queries that the notification seed names exist."""

import re
from pathlib import Path

import pabal

FOLDER = Path(pabal.__file__).parent / "notifications"
SEED = {
    "InsertRequest",
    "FetchPendingRequests",
    "MarkSent",
    "IncrementAttempt",
    "MarkFailed",
    "GetPreference",
    "UpsertPreference",
    "DeleteOldRequests",
}


def test_every_query_of_the_seed_exists() -> None:
    reference = re.compile(r"^-- name: \w+\n-- The seed's (\w+)", re.MULTILINE)
    names = {name for path in FOLDER.rglob("*.sql") for name in reference.findall(path.read_text(encoding="utf-8"))}

    assert names == SEED
