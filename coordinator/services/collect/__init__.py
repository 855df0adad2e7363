"""The Collection service: takes privatised releases from sites, each exactly once, and nothing else.

An offer carries the signed statement; all that can be decided from it (signatures of the pinned keys, ids, plan,
wave) is decided before a byte of the bundle is taken. The bundle is streamed to ``staging/``, hashed, and only then
opened. A release whose bytes are what its site and approvers signed, but whose *content* breaks the plan, is kept in
``quarantine/`` with a typed reason that the site sees; analysts never see it.

A site is answered with an acceptance only when the bundle and its folder are flushed to disk and the transaction that
logs the release is committed. Between those two a crash may leave a bundle that no transaction names; `Staging.recover`
puts it back into staging, where the site's next offer finds it. So a release is acknowledged after it is safe, visible
when it is whole, and accepted once, however often it is sent.

A bundle is opened in a worker process of its own (`coordinator.services.compute`), with as much memory and time as its
size gives it, and never before the disk says that it will be. One that was open when the coordinator died is opened
once more with little room, and after that never again: no bundle stops the coordinator twice.
"""
