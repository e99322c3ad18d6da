"""BERT's data: sentence pairs with masked words, from documents or from the recipes' HDF5 shards."""
