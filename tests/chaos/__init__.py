"""Chaos: the real stack under load while its processes die, stop and lose their links; every stream must be exact.

Where to look:

    faults.py         what may be done to whom, and the random schedule that a seed gives
    supervised.py     one real process, started again whenever it ends; poisoned_worker.py is one that tokens kill
    tcp_proxy.py      bytes between two processes: cut, half open, late
    link.py           one link of the stack: TCP proxies, and on the inner wires messages dropped, doubled, swapped
    stack.py          all processes and links together, on ports.py that stay theirs
    injector.py       carries one fault out
    invariants.py     what must be true once nothing runs any more
    requests.py       what is asked, and when a client loses interest
    clients.py        ask it over HTTP (http_client.py) and gRPC (grpc_client.py), and again where clients should
    transcript.py     what came; attempt.py how it ended
    reference.py      the undisturbed answers
    load.py           many clients for ever
    verdict.py        what came against the undisturbed answers
    campaign.py       faults one after another under load, each judged; account.py counts and sums up
    __main__.py       the program: python -m tests.chaos --minutes 60 --seed 7
"""
