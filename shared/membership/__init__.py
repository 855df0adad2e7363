"""Who takes part, in signed statements: studies granted, leads, keys and approvers of sites, reasons told."""
