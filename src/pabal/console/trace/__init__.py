"""The trace page: its subjects, its timeline and the page itself."""
