"""Prepare, inspect and verify token shards."""
