"""From text to token shards on disk, and from a data position to batches; imports no torch."""
