"""Recorded measurements of whole spaces: the file format, and where the files are."""
