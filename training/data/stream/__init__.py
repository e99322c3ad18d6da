"""Documents read during training: over HTTP, split over ranks, shuffled, packed, exact on resume."""
