"""Reading stores: `python -m benchmarks.store`."""
