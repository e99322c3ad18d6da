"""`python -m training.sample`."""

from training.sample import main

main()
