"""Proof before spending: rules on rendered manifests, each with its reason, evidence and remedy."""
