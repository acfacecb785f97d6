"""All requests to servers outside the hub."""
