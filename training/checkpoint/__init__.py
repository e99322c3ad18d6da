"""The checkpoint store: a step is either committed whole and verifiable, or it does not exist."""
