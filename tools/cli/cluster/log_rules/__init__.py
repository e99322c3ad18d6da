"""HyperPod's log-monitoring rules, tried on a log."""
