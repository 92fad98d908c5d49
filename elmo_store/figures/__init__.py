"""What a store looks like, in numbers: its text, its job, its vectors. What the report, the notebook and the explorer draw.

    text      lengths, words, scripts, duplicates: over tables of sentences
    job       tokens a second over time, shards by worker: over markers
    vectors   norms, cosines, anisotropy, maps, neighbours: over arrays of vectors
    gather    reads a bounded sample of a store and puts the above together

The first three are pure. Importing this package imports nothing.
"""
