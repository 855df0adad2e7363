"""What the coordinator serves: collection, analysts' questions and tokens, and its certificate authority."""
