"""The analyst's interface: the command line, and a study asked over the network."""
