"""The trajectory database: an append-only log, sealed to Parquet, read as one. No torch here."""
