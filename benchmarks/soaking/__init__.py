"""The parts of the soak test.

- `tiny_model`: a model of random weights that answers in milliseconds
- `stack`: `octavo serve`, whose processes are killed by name
- `clients`: thousands of requests, most of which end early in one way or another
- `samples`: memory, files and threads of every process over time, and whether they grow
- `remains`: what the services still hold when nobody asks them anything
"""
