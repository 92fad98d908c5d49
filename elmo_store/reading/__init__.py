"""A store as its consumers read it: sentences, rows of states, views, scans, caches."""
