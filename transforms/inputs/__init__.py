"""The input's files: found, split among workers, decompressed, and read as bytes."""
