"""Services of the coordinator: collection, analysts' questions and tokens, and its certificate authority."""
