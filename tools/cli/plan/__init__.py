"""Plan a run before it is paid for: memory, time, cost, interruptions, each with its error."""
