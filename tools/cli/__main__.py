"""`python -m tools.cli`."""

from tools.cli import main

main()
