"""Clusters on AWS, and any cluster that a context leads to: made, checked, priced and removed."""

from tools.cluster.spec import Spec

__all__ = ["Spec"]
