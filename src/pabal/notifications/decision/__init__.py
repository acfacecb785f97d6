"""Whether a notification is sent, and why."""
