"""The scalar mix of ELMo, and files with its learned weights."""
