"""Dead letters: list, resolve, replay."""
