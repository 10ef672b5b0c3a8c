"""smolagents: its model for OpenAI's API, text, a stream and a tool."""

import os

from smolagents import OpenAIServerModel, tool


@tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: its name
    """
    return "fine"


model = OpenAIServerModel(
    os.environ["MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key="none", max_tokens=40
)
messages = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
assert model.generate(messages).content
print("text")
assert "".join(part.content or "" for part in model.generate_stream(messages))
print("stream")
called = model.generate(messages, tools_to_call_from=[weather])
assert called.tool_calls[0].function.name == "weather"
print("tools")
