"""The stages of a job: pure functions, and one PTransform each."""
