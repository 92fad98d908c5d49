"""The host's half of a call: from text to grids of lanes × steps, by NumPy alone.

text        a call's text as numbers, and which rows are wanted
words       the numbers of words
sequences   which token's state goes to which row, for either direction
grid        sequences → a grid of lanes × steps
host        the four of them in order
"""
