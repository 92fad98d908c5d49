"""What benchmarks share: measuring and tables; texts, models and stores."""
