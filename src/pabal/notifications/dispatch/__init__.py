"""Dispatch: claim a due notification, decide again, send it, settle it."""
