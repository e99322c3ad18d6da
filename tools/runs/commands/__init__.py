"""The commands of `yard cluster run`, one module each."""
