"""The workers' boot program, which Flink and Spark start, and what watches it."""
