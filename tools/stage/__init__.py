"""Data and weights on the volume: brought there, and looked for before a job starts."""
