"""What `yard job` knows of a job on a cluster, and what it does with it."""
