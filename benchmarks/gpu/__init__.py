"""What a GPU should reach on paper, what it reaches, and what its host does for it."""
