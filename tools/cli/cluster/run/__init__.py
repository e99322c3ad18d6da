"""Runs in git: write one, list them with their state in the cluster, check them before a push."""
