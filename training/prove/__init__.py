"""Proof of a training script: starts it, observes each rank, interrupts it, writes records.

It uses no other package of trainyard and runs with the script's own Python, 3.8 or later."""
