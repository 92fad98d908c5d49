"""Spark: a standalone cluster of released artefacts on this machine, and what a cluster of one's own needs."""
