"""What a job is, whatever its kind: roles, pods, host names, state, labels, suspension, retry limits."""
