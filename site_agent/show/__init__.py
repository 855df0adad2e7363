"""What people are shown: screens, the local page, figures, the audit export and its verifier."""
