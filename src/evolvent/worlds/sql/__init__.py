"""Questions to be answered by one SQL query, over generated databases or a folder in the layout of BIRD."""
