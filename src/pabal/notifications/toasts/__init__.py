"""Toasts: notifications in a person's dashboard."""
