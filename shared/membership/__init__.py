"""Membership by signed statements: grants of studies, leads, site keys and approvers, notices of declined releases."""
