"""What benchmarks share: measuring and tables, texts and models, stores of made-up states."""
