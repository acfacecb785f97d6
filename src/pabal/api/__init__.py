"""The front door: the table of doors and what stands around it."""
