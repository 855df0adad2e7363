"""The privacy ledger: entries, charges, recovery, and the lock on the state folder."""
