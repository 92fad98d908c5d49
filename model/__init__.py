"""The biLM of Peters et al. 2018 (arXiv:1802.05365) in PyTorch: options, characters, weights, engine, training.

May import torch, NumPy, h5py, safetensors, fsspec and elmo_store. Never Beam, transforms or pipeline: the model does
not know that there are jobs. Importing this package imports nothing heavy; ask the modules.
"""
