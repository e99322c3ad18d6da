"""Base weights from a directory, the Hugging Face hub or another run: checks, identifies and loads them."""

from training.weights.errors import WeightsError
from training.weights.tensors import Tensors, fill
from training.weights.weights import Weights, open_weights

__all__ = ["Tensors", "Weights", "WeightsError", "fill", "open_weights"]
