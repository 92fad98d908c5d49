"""What workers share: the fenced root, retries, health, names in the scratch area."""
