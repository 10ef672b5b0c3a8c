"""``python -m monolane``: the command line where its script is not on the path."""

from monolane.cli import main

main()
