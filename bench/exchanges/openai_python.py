"""openai for Python: text, streams, a tool and a schema by chat; text and a stream by Responses."""

import os

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["MODEL"]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
MESSAGES = [{"role": "user", "content": "Say hello."}]


class Point(BaseModel):
    """What the answer is to be."""

    x: int
    y: int


client = OpenAI()
chat = client.chat.completions
common = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40}
assert chat.create(**common).choices[0].message.content
print("text")
parts = [c.choices[0].delta.content or "" for c in chat.create(stream=True, **common) if c.choices]
assert "".join(parts)
print("stream")
calls = chat.create(tools=[TOOL], tool_choice="required", **common).choices[0].message.tool_calls
assert calls[0].function.name == "weather"
print("tools")
assert isinstance(chat.parse(response_format=Point, **common).choices[0].message.parsed, Point)
print("schema")
answer = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=20)
assert answer.output_text
with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=20) as stream:
    assert any(event.type == "response.output_text.delta" for event in stream)
print("responses")
