"""LiteLLM, its openai and anthropic providers: text, a stream and a tool."""

import os

import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
common = {
    "model": f"openai/{os.environ['MODEL']}",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 40,
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": "none",
}
assert litellm.completion(**common).choices[0].message.content
print("text")
parts = [c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **common)]
assert "".join(parts)
print("stream")
called = litellm.completion(tools=[TOOL], tool_choice="required", **common)
assert called.choices[0].message.tool_calls[0].function.name == "weather"
print("tools")
there = {"model": f"anthropic/{os.environ['MODEL']}", "api_base": os.environ["ROOT_URL"]}
assert litellm.completion(**common | there).choices[0].message.content
print("messages")
