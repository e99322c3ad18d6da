"""Facts about hardware, prices and releases. Each number is in one place, with its source."""
