"""The commands of `yard image`, one module each."""
