"""anthropic for Python: text, a stream, a tool, and a prompt's tokens."""

import os

from anthropic import Anthropic

MODEL = os.environ["MODEL"]
TOOL = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
client = Anthropic(base_url=os.environ["ROOT_URL"], api_key="none")
common = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 40,
}
assert client.messages.create(**common).content[0].text
print("text")
with client.messages.stream(**common) as stream:
    assert "".join(stream.text_stream)
print("stream")
called = client.messages.create(tools=[TOOL], tool_choice={"type": "any"}, **common)
assert called.content[0].name == "weather"
print("tools")
assert client.messages.count_tokens(model=MODEL, messages=common["messages"]).input_tokens > 0
print("count")
