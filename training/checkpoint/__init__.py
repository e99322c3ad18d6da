"""The checkpoint store: a step is either committed whole and verifiable, or it does not exist."""

from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import Checkpoint, newest, open_checkpoint
from training.checkpoint.shards import Shard, shards_of
from training.checkpoint.store import Store

__all__ = ["Checkpoint", "CheckpointError", "Shard", "Store", "newest", "open_checkpoint", "shards_of"]
