"""The audit log: entries are written with the action, sealed afterwards, and never changed."""
