"""Services and their OAuth tokens: issue, refresh with rotation, verify, revoke."""
