"""Who did what: written with the deed, sealed behind it, never changed."""
