"""``/v1/messages``: Anthropic's API as a translation to what all requests ask for."""
