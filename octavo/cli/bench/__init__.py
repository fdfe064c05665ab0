"""`octavo bench`: puts load on a running server and prints what a client sees.

`workload` makes prompts and arrival times, `http_target` and `grpc_target` send one request each, `runner` sends them
at the right moments, `figures` turns what came back into latencies, `report` shows them; `command` ties them together.
"""
