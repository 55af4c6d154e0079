"""`python -m octavo` is the command `octavo`."""

from octavo.cli import main

main()
