"""A biLM's files.

    weights     BiLMWeights, what all the others lead to
    registry    models by name, folder or URL
    locate      where a model's files are; downloads and zips
    hdf5, safetensors    the two forms that are read and written
    convert     models of other programs (manylangs, tf_checkpoint), read once to be written as ours

Importing this package imports nothing.
"""
