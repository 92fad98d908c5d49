"""Bytes on any filesystem: a store's root, paths that stay inside it, ranges, leases, Parquet files."""
