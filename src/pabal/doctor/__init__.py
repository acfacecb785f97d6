"""The doctor checks the environment of a hub and says what to do about problems."""
