"""List, show, verify, compare, prune, set aside and export a run's checkpoints."""
