"""One module a command; each holds a click command or group called `command`."""
