"""The worker: holds weights and K/V memory, runs the steps that the scheduler sends, samples.

Where to look:

- `worker` is its life: load (`startup`, on `usable_cores`), attach (`scheduler_link`), work until told to stop.
- The way of a step: `scheduler_link` (event loop, gRPC) -> `compute_thread` (inbox) -> `executor` (order, faults) ->
  `model_runner` -> back through the event loop, where `step_report` makes metrics and spans.
- `core/` is pure: `batch_state` mirrors the running requests, `input_batch` turns a step into flat arrays,
  `work_list` cuts its attention into items, `step_sequence` decides which steps are taken and which may run,
  `slot_digest` compares with the scheduler what is believed of them, `random_numbers` defines the draws,
  `thread_policy` how many threads compute.
- The model: `models/config` is its shape. It runs in one of two ways, chosen by `numerics` and loaded by
  `model_loading`: `cpu/` (one call of our C++ kernels a step) or `models/torch_model` with `linear` and `attention/`.
  `kv_cache` is the memory of both, `sampler` turns logits into tokens.
- Its files: `gguf_file` and `safetensors_folder` map them (`weight_source`), `stored_model` knows what is what, and
  `weights` or `cpu/weights` make of it what computes, a layer a thread (`layer_loading`).

What it promises: a row's logits do not depend on the rest of its batch, bit for bit with the kernels, up to rounding
with torch (docs/cpu-worker.md); a token that is drawn depends on nothing but its logits, the seed and its position.
"""
