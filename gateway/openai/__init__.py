"""The OpenAI-compatible HTTP surface: bodies in, generation requests out, events back as JSON or server-sent events.

`app.create_app` builds it. Everything that generates goes through `gateway.generator.Generator`; nothing here knows
blocks or the scheduler. Where to look:

- Endpoints: `chat`, `completions`, `models`, `tokenize`, `health` (with /load and /metrics), `status_page`; `service`
  is what they share.
- In: `edge` (every request, first and last), `exchange` (its id, span and headers), `body` and `protocol` (JSON to
  fields), `refusals` (what is not supported), `conversion` (fields to requests), `call` (all of that, for generations).
- Out: `generating` runs the requests, `responding` answers whole or as a stream; `answers` and `logprobs` are the
  parts of an answer, `frames` the text of a stream's events, `streaming` their way to the client, `load` the counts.
- `errors`: how what went wrong looks.
"""
