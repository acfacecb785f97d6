"""The hub's signing, encryption and audit keys, and their rotation."""
