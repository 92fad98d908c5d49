"""The host's half of a call, from text to grids of lanes × steps, by NumPy alone: text → sequences → grid, in order in host."""
