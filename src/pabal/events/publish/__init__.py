"""Publish events and create their deliveries."""
