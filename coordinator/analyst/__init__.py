"""What an analyst types and sees: the command line, and a study asked over the network."""
