// @anthropic-ai/sdk: text, a stream and a tool.
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.ROOT_URL, apiKey: "none" });
const common = {
  model: process.env.MODEL,
  messages: [{ role: "user", content: "Say hello." }],
  max_tokens: 40,
};
assert((await client.messages.create(common)).content[0].text);
console.log("text");
assert(await client.messages.stream(common).finalText());
console.log("stream");
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "weather", input_schema }];
const called = await client.messages.create({ ...common, tools, tool_choice: { type: "any" } });
assert.equal(called.content[0].name, "weather");
console.log("tools");
