"""List, show, verify and export a run's checkpoints."""
