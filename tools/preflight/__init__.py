"""Rules on rendered manifests, each with its reason, evidence and remedy."""
