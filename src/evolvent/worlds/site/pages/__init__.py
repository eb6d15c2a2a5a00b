"""The pages of the three sites, and the commands of their forms."""
