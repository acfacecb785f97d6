"""Wakeups between processes: the doorbell, its channels, and what carries them."""
