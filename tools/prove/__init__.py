"""Prove a training script: start it, interrupt it, and judge what its ranks recorded."""
