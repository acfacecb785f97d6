"""People: their tokens and preferences."""
