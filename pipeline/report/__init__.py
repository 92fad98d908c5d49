"""The report about a store: one page."""

REPORT = "report.html"  # its name in the store's folder, where no other place is named
