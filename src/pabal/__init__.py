"""Pabal: a delivery hub on one PostgreSQL."""

__version__ = "0.1.0"
