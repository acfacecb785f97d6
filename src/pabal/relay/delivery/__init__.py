"""Delivery to bots: the lane, streams, long polls and the live message log."""
