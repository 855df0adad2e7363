"""Views for people: screens, the local page, figures, the audit export and its verifier."""
