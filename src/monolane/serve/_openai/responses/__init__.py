"""``/v1/responses``: OpenAI's newer API as a translation to what all requests ask for."""
