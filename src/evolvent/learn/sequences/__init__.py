"""Windows of episodes for sequence policies: how they are drawn, standardised, learned from and acted on."""
