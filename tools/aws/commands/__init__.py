"""The commands of `yard cluster`, one module each; `config` is config.py."""
