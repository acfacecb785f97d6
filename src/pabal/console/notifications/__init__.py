"""Notifications: the log, templates, rules and failing addresses."""
