"""Commands that measure: ``python -m benchmarks.NAME``. May import every room; nothing imports them."""
