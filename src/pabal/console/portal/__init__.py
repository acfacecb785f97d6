"""The portal of bot owners."""
