// Vercel's AI SDK, its OpenAI provider, which speaks Responses by default: text, a stream, a tool,
// and the turn after a tool, which names what the server has stored.
import assert from "node:assert";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, streamText, tool } from "ai";

const provider = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const common = { model: provider(process.env.MODEL), prompt: "Say hello.", maxOutputTokens: 40 };
assert.match(common.model.provider, /responses/);
assert((await generateText(common)).text);
console.log("text");
let text = "";
for await (const part of streamText(common).textStream) text += part;
assert(text);
console.log("stream");
const inputSchema = jsonSchema({
  type: "object", properties: { city: { type: "string" } }, required: ["city"],
});
const weather = tool({ description: "of a city", inputSchema, execute: async () => "sunny" });
const called = await generateText({ ...common, tools: { weather }, toolChoice: "required" });
assert.equal(called.toolCalls[0].toolName, "weather");
console.log("tools");
const question = { role: "user", content: common.prompt };
const { prompt, ...rest } = common;
const after = await generateText({
  ...rest, tools: { weather }, toolChoice: "none",
  messages: [question, ...called.response.messages],
});
assert(after.text);
console.log("turn");
