"""The worker: holds weights and K/V memory, runs the steps that the scheduler sends, samples.

Where to look:

- `worker` is its life: load (`startup`), attach (`scheduler_link`), work until told to stop.
- The way of a step: `scheduler_link` (event loop, gRPC) -> `compute_thread` (inbox) -> `executor` (order, faults) ->
  `model_runner` -> back through the event loop, where `step_report` makes metrics and spans.
- `core/` is pure: `batch_state` mirrors the running requests, `input_batch` turns a step into flat arrays,
  `step_sequence` decides which steps are taken and which may run, `slot_digest` compares with the scheduler what is
  believed of them, `random_numbers` defines the draws.
- The model: `models/llama` (forward pass), `linear`, `attention/` (paged K/V), `kv_cache` (memory), `weights` and
  `weight_source` (files), `sampler` (logits to tokens).

What it promises: a row's result does not depend on the rest of its batch beyond the rounding of attention products,
and a token that is drawn depends on nothing but its logits, the seed and its position.
"""
