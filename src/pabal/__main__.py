"""`python -m pabal`."""

from pabal.cli import main

main()
