"""Probing: what a model's layers know, measured by downstream tasks over precomputed stores. See docs/probing.md.

May import elmo_store, PyTorch and NumPy; no Beam, no model: a probe needs the stores and the labels alone.
"""
