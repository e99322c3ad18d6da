"""The subcommands of `yard job`: one module each, imported when it is called."""
