"""This site's part in a secure sum: what it is asked and consents to, and its steps, one by one."""
