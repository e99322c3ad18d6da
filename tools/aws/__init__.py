"""Sessions, identities and policies of AWS."""
