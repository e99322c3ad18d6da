"""List, show, verify, compare, copy, prune, set aside and export a run's checkpoints."""
