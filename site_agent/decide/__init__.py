"""What persons decide: plans, approvals, withdrawals, and the calendar that waits for them."""
