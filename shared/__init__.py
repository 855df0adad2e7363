"""The shared contract of both sides: dictionary, plan, encoding, mechanisms, accounting, receipts, wire."""
