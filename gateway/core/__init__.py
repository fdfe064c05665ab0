"""The pure part of the gateway: requests and events as values, the rules they obey, text from tokens, stop strings."""
