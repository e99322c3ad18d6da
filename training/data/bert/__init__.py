"""What BERT reads: sentence pairs with words to guess, from documents or from the recipes' HDF5 shards."""
