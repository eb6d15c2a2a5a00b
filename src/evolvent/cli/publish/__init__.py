"""`evolvent publish`: policies as folders that others load."""
