"""Pre-training of a biLM: the joint objective of Peters et al. 2018 (arXiv:1802.05365), section 3.1.

To be read in this order: `corpus` (text as numbers), `network` (parameters and the recurrence with its gradient), `softmax`,
`steps` (a direction's training step, on a GPU a graph), `trainer`, `run` (a folder with checkpoints), `evaluate`.
"""
