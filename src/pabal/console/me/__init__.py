"""The pages of one person (/me)."""
