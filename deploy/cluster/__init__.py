"""The workers' boot program, which Flink and Spark start, what watches it, and Beam's job server as one jar."""
