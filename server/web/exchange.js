// Reading conversations from outside: files that somebody imports, and what local storage has. Nothing of them is trusted:
// only known fields of the right type are taken over, within bounds, and messages must form a tree.
import {Conversation, kFormatVersion, newId} from './conversation.js';

export const kFormatName = 'heddle-conversations';
export const kLongestFile = 32 * 2 ** 20;  // bytes of an import
const kMostConversations = 5000;
const kMostMessages = 100_000;  // of one conversation
const kLongestText = 4 * 2 ** 20;  // characters of one field
const kMostParts = 64;  // files, calls or results of one message

export class FormatError extends Error {}

const refuse = text => { throw new FormatError(text); };
const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);
const isId = value => typeof value === 'string' && /^[\w-]{1,64}$/.test(value);

function text(value, what, longest = kLongestText) {
  if (typeof value !== 'string') refuse(`${what} must be a text`);
  if (value.length > longest) refuse(`${what} has more than ${longest} characters`);
  return value;
}

function time(value, what) {
  if (!Number.isFinite(value) || value < 0 || value > 8.64e15) refuse(`${what} must be a time in milliseconds`);
  return value;
}

function parts(value, what, fields) {
  if (!Array.isArray(value) || value.length > kMostParts) refuse(`${what} must be a list of at most ${kMostParts}`);
  return value.map(part => {
    if (!isObject(part)) refuse(`${what} must have objects`);
    return Object.fromEntries(fields.map(field => [field, text(part[field], `${what}.${field}`)]));
  });
}

const kFigures = ['tokens', 'prompt_tokens', 'cached_tokens', 'first_ms', 'tokens_per_s', 'seconds'];

function figuresOf(value) {
  if (!isObject(value)) refuse('figures must be an object');
  return Object.fromEntries(kFigures.filter(name => Number.isFinite(value[name])).map(name => [name, value[name]]));
}

function readMessage(value, known) {
  if (!isObject(value)) refuse('a message must be an object');
  const {id, parent, role} = value;
  if (!isId(id) || known.has(id)) refuse('the id of a message is missing, malformed or used twice');
  if (parent !== null && !known.has(parent)) refuse(`message ${id} has a parent that does not come before it`);
  if (!['user', 'assistant', 'tool', 'system'].includes(role)) refuse(`message ${id} has no role that is known`);
  const message = {id, parent, role, content: text(value.content, 'content'), created: time(value.created, 'created')};
  for (const name of ['reasoning', 'error']) {
    if (value[name] !== undefined) message[name] = text(value[name], name);
  }
  if (value.model !== undefined) message.model = text(value.model, 'model', 500);
  if (value.format === 'json') message.format = 'json';
  if (['open', 'stopped', 'cut', 'failed'].includes(value.state)) message.state = value.state;
  if (value.figures !== undefined) message.figures = figuresOf(value.figures);
  if (value.calls !== undefined) message.calls = parts(value.calls, 'calls', ['id', 'name', 'arguments']);
  if (value.files !== undefined) message.files = parts(value.files, 'files', ['name', 'text']);
  if (role === 'tool') message.results = parts(value.results, 'results', ['id', 'name', 'content']);
  if (isId(value.chosen)) message.chosen = value.chosen;
  return message;
}

// Fields of setup.js that travel with a conversation: texts, and nothing that acts by itself.
export const kSetupFields = ['model', 'system', 'temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'stop_text',
  'thinking', 'tools', 'tool_choice', 'answer_format', 'schema', 'extra'];

export function readSetup(value) {
  if (!isObject(value)) return {};
  return Object.fromEntries(kSetupFields.filter(name => typeof value[name] === 'string' && value[name].length <= kLongestText)
    .map(name => [name, value[name]]));
}

export function readConversation(value) {
  if (!isObject(value)) refuse('a conversation must be an object');
  if (value.version !== kFormatVersion) refuse(`a conversation has version ${JSON.stringify(value.version)?.slice(0, 20)}; this page reads ${kFormatVersion}`);
  if (!isId(value.id)) refuse('the id of a conversation is missing or malformed');
  if (!Array.isArray(value.messages) || value.messages.length > kMostMessages) {
    refuse(`a conversation must have a list of at most ${kMostMessages} messages`);
  }
  const known = new Set();
  const messages = value.messages.map(message => {
    const read = readMessage(message, known);
    known.add(read.id);
    return read;
  });
  return new Conversation({
    id: value.id, title: text(value.title, 'title', 500), kind: value.kind === 'text' ? 'text' : 'chat',
    created: time(value.created, 'created'), updated: time(value.updated, 'updated'), setup: readSetup(value.setup),
    chosen: isId(value.chosen) ? value.chosen : null,
  }, messages);
}

// A list of messages as the API and data sets for training have it.
function fromApiMessages(list) {
  if (!list.length || list.length > kMostMessages) refuse(`there must be 1 to ${kMostMessages} messages`);
  const conversation = new Conversation();
  let last = null;
  list.forEach((message, i) => {
    if (!isObject(message)) refuse(`message ${i} is no object`);
    if (message.role === 'system' && i === 0) {
      conversation.setup.system = text(message.content, 'content');
      return;
    }
    if (!['user', 'assistant'].includes(message.role)) refuse(`message ${i} has the role ${JSON.stringify(message.role)?.slice(0, 20)}; "system" (first), "user" and "assistant" are read`);
    last = conversation.add(last, {role: message.role, content: text(message.content, `content of message ${i}`)});
  });
  return conversation;
}

// The conversations in a file; throws FormatError with what is wrong with it.
export function readExport(source) {
  let value;
  try { value = JSON.parse(source); } catch { refuse('this is not a JSON file'); }
  if (Array.isArray(value)) return [fromApiMessages(value)];
  if (!isObject(value)) refuse('this file has no conversations');
  if (value.format === undefined && Array.isArray(value.messages) && value.version === undefined) return [fromApiMessages(value.messages)];
  if (value.format !== kFormatName) refuse(`this file is no export of conversations ("format" must be "${kFormatName}")`);
  if (value.version !== kFormatVersion) refuse(`this file has version ${JSON.stringify(value.version)?.slice(0, 20)}; this page reads ${kFormatVersion}`);
  if (!Array.isArray(value.conversations) || value.conversations.length > kMostConversations) {
    refuse(`"conversations" must be a list of at most ${kMostConversations}`);
  }
  return value.conversations.map((conversation, i) => {
    try {
      return readConversation(conversation);
    } catch (error) {
      if (error instanceof FormatError) refuse(`conversation ${i + 1}: ${error.message}`);
      throw error;
    }
  });
}

export const writeExport = conversations => JSON.stringify(
  {format: kFormatName, version: kFormatVersion, exported: new Date().toISOString(), conversations}, null, 1) + '\n';

// Whether two conversations have the same messages, whatever the order of their fields.
export const sameMessages = (one, other) => canonical(one) === canonical(other);
const canonical = ({messages}) => {
  const known = new Set();
  return JSON.stringify(messages.map(message => {
    const read = readMessage(message, known);
    known.add(read.id);
    return read;
  }));
};

// The same conversation under another id, for an import of one whose id is taken.
export function withNewId(conversation) {
  const {title, kind, created, updated, setup, chosen, messages} = conversation;
  return new Conversation({id: newId(), title, kind, created, updated, setup, chosen}, messages);
}
