"""Data sets: rows of several shapes, in tables and files, fitted on all cores."""
