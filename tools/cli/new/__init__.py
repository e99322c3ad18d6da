"""Write a new Component.

\b
Examples:
  yard new model qwen3-0-6b --from Qwen/Qwen3-0.6B@COMMIT
  yard new model mistral-7b --from models/mistral/config.json --hardware p5
  yard new script mine --image registry.example.com/team/mine:1 --command "torchrun train.py"
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
