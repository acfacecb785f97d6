"""The ground floor: words every other package may use, and nothing that touches the outside."""
