"""The gateway: text in, text out, for gRPC clients and OpenAI clients.

Owns text: the tokenizer and chat template, who the tenant is, the clients' streams, stop strings and the incremental
detokenizer. Never knows blocks or batches. Where to look:

- `core/generation` what a client asks for and gets, as values; `core/limits` which requests are allowed;
  `core/detokenizer`, `core/stop` and `core/answer` how tokens become chunks of text; `core/submission` what the
  scheduler is told and tells.
- `generator` is what the handlers of both protocols call; one call is a `generation_run`, made by `submitter`, its
  updates wait in an `inbox`. `call_record`, `call_spans` and `request_metrics` say how it went.
- `scheduler_session` is what goes to and comes from the scheduler, `dialled_session` one stream of it, with numbers and
  signs of life, `session_wire` its messages.
- `inference_servicer` and `wire` are octavo.inference.v1; `openai/` is the OpenAI API; `failures` how errors look.
- `tokenizer` (the only user of transformers), `model_profile`, `serving` (ready or not, and why), `config`,
  `http_server`, `http_connection` and `http_connections` (what a slow or hostile client may cost),
  `handover` (how a gateway takes both ports over from the one before it), `__main__`.

A client that reads slowly costs memory, but not without bound: a request holds at most max_tokens tokens, and a
client that takes nothing for `stalled_client_s` is cancelled. What piled up meanwhile goes out as one chunk.
"""
