"""Flink: the settings that a cluster of one's own needs, and Beam's runner for it as a pom."""
