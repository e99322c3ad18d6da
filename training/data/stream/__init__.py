"""Documents that are read while training goes on: over HTTP, by rank, shuffled, packed, exact on resume."""
