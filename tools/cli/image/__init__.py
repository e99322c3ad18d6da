"""Check, repair, build, test, push and pin container images."""
