"""Beam's runners: options, job services, submission, workers."""
