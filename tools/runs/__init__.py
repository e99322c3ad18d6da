"""Runs in git: one file of clusters/<name>/runs is one job that Flux makes, from one commit."""
