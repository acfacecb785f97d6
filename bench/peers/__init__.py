"""The others, each in a program of its own. They run where they are installed (`.venv-bench`), never beside Pabal."""
