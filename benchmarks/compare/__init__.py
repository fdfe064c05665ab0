"""Octavo against other engines: the loads of `benchmarks.loads` on one server after the other, in turn.

    benchmarks/compare/setup_peers.sh FOLDER
    python -m benchmarks.compare FOLDER

- `servers` describes who is compared: command line, environment, how it is asked
- `running` starts one of them, waits for its first token, puts it to sleep between its turns, adds up its memory
- `line_target` asks an engine that has no HTTP server, by lines of JSON; `openvino_engine` is such an engine
- `rows` are the figures and what they have to reach; `turn` measures those that were asked for
- `table` puts medians and ratios to the best peer together
- `own_cost` says what a step of Octavo costs outside the model
- `setup_peers.sh` and `make_checkpoint` set the peers up; none is a dependency of Octavo
"""
