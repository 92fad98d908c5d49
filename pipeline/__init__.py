"""Whole jobs built from transforms, their options, the command line, progress and reports."""
