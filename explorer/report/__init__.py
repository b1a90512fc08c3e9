"""What a person reads and what a program parses: tables, progress, JSON, Markdown."""
