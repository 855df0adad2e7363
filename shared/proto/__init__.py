"""Protocol buffers of the wire, and the code generated from them (`make proto`)."""
