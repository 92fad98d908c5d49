"""Kubernetes: a Flink cluster by its operator with Beam workers beside the TaskManagers, and a plain Job for one machine."""
