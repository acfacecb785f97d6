"""Templates: the texts of notifications, per channel and language."""
