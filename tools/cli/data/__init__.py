"""Prepare, inspect and verify token shards.

A dataset is a directory of token shards with a tokenizer and an index of digests.

\b
Examples:
  yard data prepare python-stdlib --vocab-size 4096
  yard data prepare "corpus/*.jsonl.gz" --tokenizer models/llama/tokenizer.json --vocab-size 128256
  yard data prepare "https://host/part-{00..07}.parquet" --workers 8
  yard data inspect
  yard data verify local/data/python-stdlib-0123456789ab
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
