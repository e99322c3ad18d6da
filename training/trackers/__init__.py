"""Trackers: a run's metrics in MLflow, Weights & Biases or trackio, sent by processes of their own."""
