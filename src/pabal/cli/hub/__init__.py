"""Commands that run, set up and inspect a hub."""
