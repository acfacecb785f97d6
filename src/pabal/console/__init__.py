"""The console: server-rendered pages for operators, bot owners and chat users."""
