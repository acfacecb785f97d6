"""Basics that every other package may use. Nothing here does I/O but logging."""
