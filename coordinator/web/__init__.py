"""The coordinator over HTTPS: what the analysts' service answers, as JSON for any program and as pages for people."""
