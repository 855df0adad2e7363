"""The hospital's side: the only code that ever sees a record."""
