"""What a store is: the names and numbers of its layout, the manifest, markers, ids, int8 rows."""
