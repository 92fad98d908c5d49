"""Beam's portable job service with an external worker pool, both on this machine."""
