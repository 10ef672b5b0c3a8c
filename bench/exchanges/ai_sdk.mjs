// Vercel's AI SDK, its openai-compatible provider: text, a stream and a tool.
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const provider = createOpenAICompatible({ name: "monolane", baseURL: process.env.OPENAI_BASE_URL });
const common = { model: provider(process.env.MODEL), prompt: "Say hello.", maxOutputTokens: 40 };
assert((await generateText(common)).text);
console.log("text");
let text = "";
for await (const part of streamText(common).textStream) text += part;
assert(text);
console.log("stream");
const inputSchema = jsonSchema({
  type: "object", properties: { city: { type: "string" } }, required: ["city"],
});
const tools = { weather: tool({ description: "of a city", inputSchema }) };
const called = await generateText({ ...common, tools, toolChoice: "required" });
assert.equal(called.toolCalls[0].toolName, "weather");
console.log("tools");
