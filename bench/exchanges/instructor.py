"""instructor: an object by a tool, and by a JSON schema."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Point(BaseModel):
    """A point."""

    x: int
    y: int


for mode, name in ((instructor.Mode.TOOLS, "tools"), (instructor.Mode.JSON_SCHEMA, "schema")):
    client = instructor.from_openai(OpenAI(), mode=mode)
    point = client.chat.completions.create(
        model=os.environ["MODEL"],
        messages=[{"role": "user", "content": "A point."}],
        response_model=Point,
        max_tokens=60,
    )
    assert isinstance(point, Point)
    print(name)
