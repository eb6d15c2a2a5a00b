"""Networks, the policy, and the dialects that turn turns into tokens."""
