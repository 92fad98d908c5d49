"""Pre-training of a biLM: the joint objective of Peters et al. 2018 (arXiv:1802.05365), section 3.1.

May import torch, NumPy and the rest of `model`. Reads no file formats: sentences come as an iterator of token lists.
"""
