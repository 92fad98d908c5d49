"""The biLM of Peters et al. 2018 (arXiv:1802.05365) in PyTorch: `bilm` is the model itself, plain, in reading order: begin there.

`engine` is the same function, fast; `files` are weights in and out; `training` is how weights come about.
"""
