"""One secure sum of the sites that dial in: where their records are looked at from, and its steps, one by one."""
