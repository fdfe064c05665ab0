"""The worker's decisions without its tensors: what a step is, which steps run, and the index lists they need.

`step` holds the values, `step_sequence` decides whether a step may run, `batch_state` mirrors the running requests,
`input_batch` turns a step into flat arrays. Standard library and numpy only.
"""
