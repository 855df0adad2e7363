"""Fixed before a study begins: dictionary, encoding, plan, invitation, approvals in advance, joint training."""
