"""The sections of the trainer's configuration: each key with its type, its default and what it must fit."""

from training.sections.base import ConfigError, Section
from training.sections.data import Data, Masking, Stream
from training.sections.model import BertShape, Lora, Model, RopeScaling
from training.sections.run import Checkpoint, Device, Parallel, Upload
from training.sections.train import Sample, Train
from training.sections.whole import BERT, FINETUNE, PRETRAIN, Config

__all__ = [
    "BERT", "FINETUNE", "PRETRAIN",
    "BertShape", "Checkpoint", "Config", "ConfigError", "Data", "Device", "Lora", "Masking", "Model",
    "Parallel", "RopeScaling", "Sample", "Section", "Stream", "Train", "Upload",
]  # fmt: skip
