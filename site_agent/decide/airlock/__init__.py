"""The airlock: every decision a person takes about a release, in one place for the command line and the local page.

Computed is not released. A person approves the exact bytes, rejects them, sends them back with a question, or takes
them back later; each decision is signed with that person's own key, noted in the ledger before it has an effect, and
safe to repeat. What was approved may have left, even where no answer came back: taking it back therefore stops the
sending here at once, with or without a network, and then asks the coordinator whether there is something to bury.

Nothing here prints or asks; a caller hands over how to open a key, and gets a value or a `Refusal`.
"""
