"""The demo: other people's programs, played on loopback, so that the hub can be tried without them. One file each."""
