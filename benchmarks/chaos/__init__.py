"""Faults on purpose: kills, failing storage, a broken network, hostile records, flipped bits; what jobs and readers did then."""
