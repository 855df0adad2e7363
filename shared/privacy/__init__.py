"""Privacy accounting: events and their price, and what one person can have been charged."""
