"""Facts of the outside world that the product depends on, each number in one place with its source."""
