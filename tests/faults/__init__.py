"""Every fault that a study must survive, as one command: ``make faults``.

A test that makes a fault says which (``@pytest.mark.fault("F3")``) and what it counted (the fixture `tally`). Most lie
beside what they try and run in ``make test``; those of this folder need a fault of their own making: a disk that loses
what was not flushed (`disk`), a network that lies (`proxy`), bytes nobody would write (`fuzz`). ``python -m
tests.faults`` runs them all with more repeats, adds up, and prints one line.
"""
