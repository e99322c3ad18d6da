"""The tiny model and corpus of tests/training, for real trackers."""

from tests.training.conftest import corpus, data_root, one_thread, texts

__all__ = ["corpus", "data_root", "one_thread", "texts"]
