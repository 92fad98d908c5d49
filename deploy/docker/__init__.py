"""Container images: one Dockerfile, a target a use."""
