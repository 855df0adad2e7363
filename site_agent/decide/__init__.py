"""Decisions of persons: plans, approvals, withdrawals, and the calendar of waves that depends on them."""
