// openai for Node: text, a stream and a tool, by chat; text by Responses.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI();
const common = {
  model: process.env.MODEL,
  messages: [{ role: "user", content: "Say hello." }],
  max_tokens: 40,
};
assert((await client.chat.completions.create(common)).choices[0].message.content);
console.log("text");
let text = "";
for await (const chunk of await client.chat.completions.create({ ...common, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert(text);
console.log("stream");
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const called = await client.chat.completions.create({ ...common, tools, tool_choice: "required" });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "weather");
console.log("tools");
const response = await client.responses.create({
  model: process.env.MODEL, input: "Say hello.", max_output_tokens: 20,
});
assert(response.output_text);
console.log("responses");
