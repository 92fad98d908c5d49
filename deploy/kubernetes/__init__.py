"""Kubernetes, by kustomize: a plain Job for one machine, and a Flink cluster by its operator with Beam workers beside it."""
