"""The only code that talks to other people's servers."""
