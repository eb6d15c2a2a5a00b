"""Networks, the policy, and the dialects that convert turns to tokens."""
