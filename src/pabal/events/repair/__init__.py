"""Chores that keep the events' tables consistent."""
