"""The other queues, each a program of its own. They run in the environment `.venv-bench`, apart from Pabal."""
