"""Submit a job to a cluster, watch it, and find out why it does not train."""
