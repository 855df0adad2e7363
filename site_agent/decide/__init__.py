"""What persons decide: plans, approvals, withdrawals, the outbox, and the calendar that waits for them."""
