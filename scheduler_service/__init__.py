"""The scheduler: owns requests, their tokens and their order; decides in every step who advances and by how much.

It knows no text, no tensors and no block pool. Where to look:

core/                the rules, pure; `core/scheduler.py` is one worker's scheduler
engine.py            requests, submit to finish   gateways.py         who is connected, or may be back soon
placer.py            which worker gets a request  workers.py          which workers are attached
worker_loop.py       plan, ask, settle, send: one loop per worker, one step ahead
inbox.py             what waits for a plan        worker_core.py      the scheduler of a new worker
kvcache_client.py    the PlanStep stream          worker_pool.py      whether a worker's pool is open
worker_link.py       each worker's Connect stream
gateway_session.py   one gateway's requests       session_stream.py   its Session stream: numbers, signs of life
servicer.py          the gRPC methods
failures.py          how errors look to gateways and workers: the status table, and those that need more than a row
tickets.py           what the shell keeps of a request: who asked, and when what happened
reports.py           tells gateways, metrics and traces what the cores decided; spans.py, metrics.py,
                     worker_metrics.py
serving.py           what gateways are told       worker_hello.py      how a worker introduces itself
watchdog.py          notices when nothing moves   state_wire.py        what GetState tells of a worker
kvcache_wire.py, session_wire.py, worker_wire.py
                     messages to core values and back, a file per stream; streams.py writes them
config.py            the settings                 __main__.py          the process
"""
