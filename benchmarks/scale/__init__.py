"""What grows with the corpus and the number of workers: `python -m benchmarks.scale`."""
