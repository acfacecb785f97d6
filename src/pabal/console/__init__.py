"""The console: server-rendered pages for whoever runs the hub."""
