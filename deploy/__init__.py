"""How the same job runs elsewhere: one folder a place, each with a script or a recipe."""
