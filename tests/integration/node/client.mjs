// The official Node client against a running cluster: node client.mjs URL MODEL. Prints one JSON object.
import OpenAI from 'openai';

const [url, model] = process.argv.slice(2);
const client = new OpenAI({baseURL: url + '/v1', apiKey: 'unused', maxRetries: 0, timeout: 120000});
const messages = [{role: 'user', content: 'Please find me a round trip flight to San Diego next Friday, for one person.'}];
const settings = {model, messages, max_tokens: 24, temperature: 0};

const models = [];
for await (const entry of await client.models.list()) models.push(entry.id);

const whole = await client.chat.completions.create(settings);

let streamed = '';
let usage = null;
const stream = await client.chat.completions.create({...settings, stream: true, stream_options: {include_usage: true}});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? '';
  if (chunk.usage) usage = chunk.usage;
}

const completion = await client.completions.create({model, prompt: [5, 6, 7, 8], max_tokens: 4, temperature: 0});

let error = null;
try {
  await client.chat.completions.create({...settings, top_p: 7});
} catch (caught) {
  error = {name: caught.constructor.name, status: caught.status, param: caught.param};
}

const aborted = await client.chat.completions.create({...settings, max_tokens: 2000, stream: true});
let pieces = 0;
for await (const chunk of aborted) {
  if (chunk.choices.length && ++pieces === 3) break;  // leaving the loop closes the connection
}

console.log(JSON.stringify({models, whole: whole.choices[0].message.content, finish: whole.choices[0].finish_reason,
  wholeUsage: whole.usage, streamed, usage, completion: completion.choices[0].text, error, pieces}));
