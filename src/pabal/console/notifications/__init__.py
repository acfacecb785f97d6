"""The room of notifications: their log, templates, rules, addresses that refuse us."""
