"""`python -m training.prepare`."""

from training.prepare import main

main()
