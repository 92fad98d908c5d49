"""Whole jobs: what was asked for, preflight checks, and the run."""
