"""Laws of outcomes given everything else, fitted to records and put right for what a flow draws."""
