"""Probing: what a model's layers know, measured by downstream tasks over precomputed stores. See docs/development/probing.md."""
