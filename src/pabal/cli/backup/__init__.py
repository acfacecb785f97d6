"""Commands that back up, restore and upgrade the data of a hub."""
