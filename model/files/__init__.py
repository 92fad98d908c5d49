"""A biLM's files: `weights` is what the others lead to, `registry` knows models by name, `convert` other programs' models."""
