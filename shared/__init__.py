"""What both sides must agree on: dictionary, plan, encoding, mechanisms, accounting, receipts, wire."""
