"""Spark: Beam's runner for it as a pom."""
