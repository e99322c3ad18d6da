"""The package that trains: configuration, data, model, loop, checkpoints, metrics."""
