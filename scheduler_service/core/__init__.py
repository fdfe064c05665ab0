"""The scheduler's rules: pure, synchronous, standard library only. Start at `scheduler.py`.

request.py        one request, its position and its stop rules
request_queue.py  who waits, in order            roster.py    who runs, and the moves between the two
policy.py         order and victims              planner.py   what the next step wishes for
plan.py           the values at the border       step_delta.py  what the worker is told of a step
dispatch.py       grants become a step           arrival.py   what comes back of it
flight.py         steps sent and not answered    pending.py   what the KV cache service has not been told
rejection.py      what is refused at submit      placement.py which worker gets a request
figures.py        totals                         outcome.py   what the shell tells others of all this
"""
