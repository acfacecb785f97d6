"""The engine under the three lanes."""
