"""A biLM's files: `weights` is what the others lead to, `registry` knows models by name, and other programs' models."""
