"""`gdpfed serve`: plans, runs, a ledger and a deployment, to look at in a browser on this machine.

Place: over planning, runs, ledger, report and flower; under the command line. It reads, and writes one thing: a plan
that somebody saves. The pages look like the report, whose style, figures, tables and sentences they use.

    guard        who may ask: token, host, origin, sizes
    app          which address gives which page or answer
    states       the planner's state: a link, a command and settings are the same thing
    work         what takes computing time, in processes of their own (`processes`)
    run_list     runs below the folder, read as they grow; ledgers and deployment: what is known of them
    pages        templates
    server       starts and ends it
"""
