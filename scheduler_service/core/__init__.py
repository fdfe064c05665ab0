"""The scheduler's rules: pure, synchronous, standard library only. Start at `scheduler.py`.

request.py        one request, its position and its stop rules
request_queue.py  who waits, in order            roster.py    who runs, and the moves between the two
policy.py         who is served first, and who gives way: fcfs.py, priority.py, fair.py on ordered_heap.py
backlog.py        how much waits                 planner.py   what the next step wishes for
intake.py         whether a newcomer is taken    drain_rate.py  how fast the queue drains, and what follows from it
progress.py       when nothing moves, and why       places.py    who was refused for now, and may come back when
plan.py           the values at the border       step_delta.py  what the worker is told of a step
slot_digest.py    by which worker and scheduler compare what they believe of a step's rows
dispatch.py       grants become a step           arrival.py   what comes back of it
flight.py         steps sent and not answered    pending.py   what the KV cache service has not been told
grant_log.py      blocks given out lately: what a restarted KV cache service must not find again
rejection.py      what is refused at submit      placement.py which worker gets a request
figures.py        totals                         outcome.py   what the shell tells others of all this
"""
