"""Files, JSON, processes and imports: what comes from outside is read with limits here."""
