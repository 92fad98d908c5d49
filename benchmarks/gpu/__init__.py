"""What waits for a GPU."""
