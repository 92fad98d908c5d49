"""How far a job is, and what a finished one came to."""
