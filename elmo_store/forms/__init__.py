"""The Zarr and the Parquet form of a store: create, encode, and read rows by their bytes."""
