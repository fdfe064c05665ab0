"""The worker's decisions without its tensors: what a step is, which steps run, and the index lists they need.

`step` holds the values, `step_sequence` decides which steps are taken and may run, `batch_state` mirrors the running
requests, `slot_digest` compares it with what the scheduler believes, `input_batch` turns a step into flat arrays,
`work_list` cuts its attention into items. `thread_policy` says how many threads compute it.
Standard library and numpy only.
"""
