"""The report about a store: one page."""
