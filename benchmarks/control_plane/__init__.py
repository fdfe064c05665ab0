"""The control plane as it runs, in processes of its own, with a worker that only sleeps.

- `processes`: a KV cache service and a scheduler
- `scripted_worker`: dials the scheduler, takes as long for a step as it is told, and notes how long it idled
- `crowd`: a gateway that keeps many requests decoding
"""
