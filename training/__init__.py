"""The trainer: configuration, data, model, loop, checkpoints, metrics."""
