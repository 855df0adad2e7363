"""The airlock in a browser on the steward's own machine, in the language of whoever looks."""
