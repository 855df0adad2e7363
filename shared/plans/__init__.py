"""What a study fixes beforehand: dictionary, encoding, plan, invitation, approvals in advance, joint training."""
