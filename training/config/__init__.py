"""The trainer's configuration: each key with its type, default and limits, and the reader of its files."""

from training.config.base import ConfigError, Section
from training.config.config import BERT, FINETUNE, PRETRAIN, Config
from training.config.data import Data, Masking, Stream
from training.config.job import Nodes, Retry
from training.config.loader import DATA, FILES, OWNER, apply_override, load, load_texts
from training.config.model import BertShape, Lora, Model, RopeScaling
from training.config.run import Checkpoint, Device, Parallel, Upload
from training.config.track import Track
from training.config.train import Sample, Train

__all__ = [
    "BERT", "DATA", "FILES", "FINETUNE", "OWNER", "PRETRAIN",
    "BertShape", "Checkpoint", "Config", "ConfigError", "Data", "Device", "Lora", "Masking", "Model",
    "Nodes", "Parallel", "Retry", "RopeScaling", "Sample", "Section", "Stream", "Track", "Train", "Upload",
    "apply_override", "load", "load_texts",
]  # fmt: skip
