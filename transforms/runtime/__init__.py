"""What workers share: the fenced root, retries, health, progress, names in the scratch area."""
