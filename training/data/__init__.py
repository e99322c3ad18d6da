"""Turns text into token shards on disk, and a data position into batches; imports no torch."""
