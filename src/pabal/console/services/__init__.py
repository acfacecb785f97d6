"""Services, their credentials and their subscriptions."""
