"""What images of users get: process 1 for a script of theirs, and `import trainyard` in that script."""
