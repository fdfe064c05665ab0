"""The OpenAI-compatible HTTP surface: bodies in, generation requests out, events back as JSON or server-sent events.

`app.create_app` builds it. Everything that generates goes through `gateway.generator.Generator`; nothing here knows
tokens, blocks or the scheduler.
"""
