"""Commands that measure: ``python -m benchmarks.NAME``."""
