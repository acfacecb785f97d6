"""Services and their tokens: issue, refresh with rotation, verify, revoke."""
