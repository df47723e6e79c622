"""What every suite shares: cases, the run and its records, replay, and the command line.

    casefile   a case set: YAML, checked, with its digest
    plan       what a run will ask: units of invocations, and what a suite is
    wire       one streamed request, kept line by line with its time
    answer     what a client has in hand after those lines
    talk       how a suite asks: a server, a recording, or nobody (dry run)
    rundir     the run's folder: records that survive a kill
    manifest   what was run on what, with digests and a seal
    prepare    cases and units, from flags or from a manifest
    live       a run against a server
    replay     a recorded run, judged again
    verdict    records to faults, faults to gates: the one judge for live runs and replays
    derived    a recording with a stated edit, to show that a gate fails
    preflight  the server is the one that the recipe describes
    command    the command line
    installed  the Python that runs a command has this distribution
"""
