"""Commands for notifications, rules, templates, people and addresses."""
