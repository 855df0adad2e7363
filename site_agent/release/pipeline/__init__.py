"""The left half of the flow: from an approved plan and a table to sealed bytes that wait for a person.

`making.make_release` does its stages in one order and says so through one callback. The order is the guarantee: the
budget is reserved and witnessed before a record is read; nothing is drawn before the floors hold; the one draw is
sealed on disk before anything is measured on it. After the seal nothing that reads a released record decides, wherever
an ε is promised to persons: checks and attacks are shown to the approver, and end alike whatever the records were.
Only under ``local``, whose ε is conditional on the flow, may they refuse (`StudyPlan.records_decide`); such a release
is burnt with the reason, because one that is drawn again until it passes would have been drawn more than once. A
refusal *before* the draw keeps the reservation, and the next run, or the next wave, takes it up; a run that was killed
*after* the seal is checked and audited by the next one.
"""
