"""Who may use the console: names, passwords, sessions."""
