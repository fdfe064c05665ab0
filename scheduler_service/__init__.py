"""The scheduler: owns requests, their tokens and their order; decides in every step who advances and by how much.

It knows no text, no tensors and no block pool. Where to look:

core/                the rules, pure; `core/scheduler.py` is one worker's scheduler
engine.py            requests, their placement, and the workers that are attached
worker_loop.py       plan, ask, settle, send: one loop per worker, one step ahead
kvcache_client.py    the PlanStep stream          worker_link.py       the Connect stream of each worker
gateway_sessions.py  the Session stream           servicer.py          GetState, Drain, and the status table
tickets.py           what the shell keeps of a request: who asked, and when what happened
spans.py, metrics.py what a person sees of it     wire.py              messages to core values and back
"""
