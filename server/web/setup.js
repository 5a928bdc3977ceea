// How the model is asked: the fields of the panel "Setup", which a conversation keeps as texts, and what they become in
// a request. requestFields needs no document.
export const kNumbers = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];
const kTextTokens = 256;  // that a text goes on for where nothing is said: the API's own default is 16

export class SetupError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function parseField(setup, field, what, check) {
  if (!setup[field]?.trim()) return null;
  let value;
  try { value = JSON.parse(setup[field]); } catch (error) { throw new SetupError(field, `${what} must be JSON: ${error.message}`); }
  const problem = check(value);
  if (problem) throw new SetupError(field, problem);
  return value;
}

const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);

// The tools of a setup, or null. A list of functions may leave out the wrapping {"type": "function"}.
export function toolsOf(setup) {
  const tools = parseField(setup, 'tools', 'Tools', value =>
    (Array.isArray(value) && value.every(isObject) ? '' : 'Tools must be a list of objects, [{"type": "function", …}].'));
  if (!tools?.length) return null;
  return tools.map((tool, i) => {
    const wrapped = tool.type === undefined && typeof tool.name === 'string' ? {type: 'function', function: tool} : tool;
    if (typeof wrapped.function?.name !== 'string') throw new SetupError('tools', `Tool ${i + 1} has no function with a name.`);
    return wrapped;
  });
}

function answerFormat(setup) {
  if (setup.answer_format === 'json') return {type: 'json_object'};
  if (setup.answer_format !== 'schema') return null;
  const schema = parseField(setup, 'schema', 'The schema', value =>
    (isObject(value) || typeof value === 'boolean' ? '' : 'A schema must be an object.'));
  if (schema === null) throw new SetupError('schema', 'The answer is to fit a JSON Schema: write one, or choose another format.');
  return {type: 'json_schema', json_schema: {name: 'answer', strict: true, schema}};
}

// Fields of a request. Throws SetupError with the field that is wrong.
export function requestFields(setup, {chat}) {
  const fields = {};
  for (const name of kNumbers) {
    if (!setup[name]) continue;
    fields[name] = Number(setup[name]);
    if (!Number.isFinite(fields[name])) throw new SetupError(name, `${name} must be a number.`);
  }
  const stops = (setup.stop_text ?? '').split('\n').filter(Boolean);
  if (stops.length) fields.stop = stops;
  const format = answerFormat(setup);
  if (format) fields.response_format = format;
  if (chat) {
    const tools = toolsOf(setup);
    if (tools) fields.tools = tools;
    if (tools && setup.tool_choice) {
      fields.tool_choice = ['auto', 'none', 'required'].includes(setup.tool_choice) ? setup.tool_choice
        : {type: 'function', function: {name: setup.tool_choice}};
    }
    if (setup.thinking) fields.chat_template_kwargs = {enable_thinking: setup.thinking === 'on'};
  } else {
    fields.max_tokens ??= kTextTokens;
  }
  const extra = parseField(setup, 'extra', 'Further fields', value => (isObject(value) ? '' : 'Further fields must be an object.'));
  return {...fields, ...extra};
}

// The settings that differ from the defaults, for the panel's line.
export function summaryOf(setup, {chat}) {
  const parts = [];
  if (chat && setup.system?.trim()) parts.push('system prompt');
  for (const name of kNumbers) if (setup[name]) parts.push(`${name.replace('_', ' ')} ${setup[name]}`);
  if (setup.stop_text) parts.push('stop texts');
  if (chat && setup.thinking) parts.push(`reasoning ${setup.thinking}`);
  if (chat && setup.tools?.trim()) {
    try {
      const count = toolsOf(setup)?.length ?? 0;
      if (count) parts.push(count === 1 ? '1 tool' : `${count} tools`);
    } catch { parts.push('tools with an error'); }
  }
  if (setup.answer_format) parts.push(setup.answer_format === 'schema' ? 'JSON Schema' : 'JSON');
  if (setup.extra?.trim()) parts.push('further fields');
  return parts.join(' · ');
}

export const kExampleTools = JSON.stringify([{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the current weather in a city',
    parameters: {type: 'object', properties: {city: {type: 'string'}}, required: ['city']},
  },
}], null, 2);

export const kExampleSchema = JSON.stringify({
  type: 'object',
  properties: {answer: {type: 'string'}, confidence: {type: 'number', minimum: 0, maximum: 1}},
  required: ['answer', 'confidence'],
  additionalProperties: false,
}, null, 2);
