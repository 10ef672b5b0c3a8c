"""langchain-openai: text, a stream, a tool, and structured output."""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Point(BaseModel):
    """A point."""

    x: int
    y: int


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return "fine"


model = ChatOpenAI(model=os.environ["MODEL"], max_tokens=40)
assert model.invoke("Say hello.").content
print("text")
assert "".join(str(part.content) for part in model.stream("Say hello."))
print("stream")
called = model.bind_tools([weather], tool_choice="required").invoke("Weather in Oslo?")
assert called.tool_calls[0]["name"] == "weather"
print("tools")
assert isinstance(model.with_structured_output(Point).invoke("A point."), Point)
print("schema")
