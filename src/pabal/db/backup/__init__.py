"""Dump a hub's database, load the dump into another one, and the file format of a backup."""
