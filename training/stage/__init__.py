"""Brings data and weights onto a volume: fetched, unpacked, with digests, whole or not at all.

`yard stage` runs `python -m training.stage` in a pod of the image `toolbox`, or on this machine.
"""
