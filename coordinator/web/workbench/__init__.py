"""The workbench: pages for people, made of what the analysts' service answers."""
