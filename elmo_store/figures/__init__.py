"""What a store looks like, in numbers: its text, its job, its vectors. What the report and the explorer draw.

text      lengths, words, duplicates: over tables of sentences
vectors   norms, cosines, anisotropy: over arrays of vectors
gather    reads a bounded sample of a store and puts these together
plots     draws them
"""
