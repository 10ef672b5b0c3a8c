"""pydantic-ai: text, a stream, and output by a tool."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


class Point(BaseModel):
    """A point."""

    x: int
    y: int


model = OpenAIChatModel(os.environ["MODEL"])
settings = {"max_tokens": 60}
assert Agent(model, model_settings=settings).run_sync("Say hello.").output
print("text")


async def stream() -> str:
    """Return the text of a stream."""
    async with Agent(model, model_settings=settings).run_stream("Say hello.") as result:
        return "".join([part async for part in result.stream_text(delta=True)])


assert asyncio.run(stream())
print("stream")
agent = Agent(model, output_type=Point, model_settings=settings)
assert isinstance(agent.run_sync("A point.").output, Point)
print("tools")
