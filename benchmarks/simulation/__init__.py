"""The real cores of scheduler and KV cache service, without wires and with a worker that only takes time.

- `step_time`: how long a step takes: linear in prefill tokens, decode rows and context tokens
- `workload`: who asks when, with what prompt: arrivals, shared prefixes, conversations; the same for the same seed
- `kv_side`: plans and grants handed from one core to the other
- `worker`: one worker, its scheduler core and its pool, two steps ahead
- `cell`: all workers and requests on one clock
- `report`: percentiles, hit rate, preemptions, fairness, and the cores' own processor time
- `step_cost`: what a step costs in the cores, without a clock
- `sweep`: how that cost grows
- `plots`: both as pictures
"""
