"""Claim events and settle them: pull, handlers, transactional handlers."""
