// A conversation is a tree of messages: another answer, or an edited question, is one more child of the same message.
// Each message knows which of its children is shown; from the root along those is the path, which is what one reads.
// Messages are added and completed and never taken away, so copies of a conversation in two tabs can be merged.
//
// A message: {id, parent, role, content, created} and, where it has them, reasoning, calls [{id, name, arguments}],
// results [{id, name, content}] (role "tool"), files [{name, text}], model, format ("json"), figures, state, error,
// chosen. state: "open" while an answer comes, then absent; "stopped", "cut" (at the limit), "failed".

export const kFormatVersion = 1;
const kRoot = '';  // parent of first messages

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_');
}

export class Conversation {
  constructor({id = newId(), title = '', kind = 'chat', created = Date.now(), updated = created, setup = {}, chosen = null} = {}, messages = []) {
    Object.assign(this, {id, title, kind, created, updated, setup, chosen});
    this.messages = [];
    this.byId = new Map();
    this.childIds = new Map();
    for (const message of messages) this.insert(message);
  }

  get empty() { return this.messages.length === 0; }

  insert(message) {
    this.messages.push(message);
    this.byId.set(message.id, message);
    const parent = message.parent ?? kRoot;
    if (!this.childIds.has(parent)) this.childIds.set(parent, []);
    this.childIds.get(parent).push(message.id);
  }

  // Adds a message below `parent` (null: as a beginning), and shows it.
  add(parent, fields) {
    const message = {id: newId(), parent: parent?.id ?? null, created: Date.now(), content: '', ...fields};
    this.insert(message);
    this.choose(message);
    this.updated = Date.now();
    if (!this.title && message.role === 'user') this.title = titleOf(message);
    return message;
  }

  // Undoes the last add: nothing has been kept of it.
  takeBack(message) {
    this.messages.pop();
    this.byId.delete(message.id);
    const siblings = this.childIds.get(message.parent ?? kRoot);
    siblings.pop();
    const last = siblings.at(-1);
    const parent = this.parentOf(message);
    if (parent) parent.chosen = last;
    else this.chosen = last ?? null;
    if (this.empty) this.title = '';
  }

  children(message) {
    return (this.childIds.get(message?.id ?? kRoot) ?? []).map(id => this.byId.get(id));
  }

  parentOf(message) { return message.parent === null ? null : this.byId.get(message.parent); }

  // The child that is shown: the chosen one, else the newest.
  shownChild(message) {
    const children = this.children(message);
    const chosen = message ? message.chosen : this.chosen;
    return children.find(child => child.id === chosen) ?? children.at(-1) ?? null;
  }

  choose(message) {
    const parent = this.parentOf(message);
    if (parent) parent.chosen = message.id;
    else this.chosen = message.id;
  }

  // Messages from the root to the end of what is shown.
  path() {
    const path = [];
    for (let next = this.shownChild(null); next; next = this.shownChild(next)) path.push(next);
    return path;
  }

  // From the root to `message`, which need not be shown.
  pathTo(message) {
    const path = [];
    for (let at = message; at; at = this.parentOf(at)) path.push(at);
    return path.reverse();
  }

  // Below which a new question goes: unanswered ones before it, and answers without content, are passed over, because
  // chat templates want turns. They remain as alternatives of the new one.
  placeForQuestion() {
    let place = this.path().at(-1) ?? null;
    while (place && (isEmptyAnswer(place) || (place.role === 'user' && this.kind === 'chat'))) place = this.parentOf(place);
    return place;
  }

  // Takes over what a copy of this conversation has more of; whether anything changed, and whether the copy lacks
  // something.
  merge(copy) {
    let changed = false, ahead = this.messages.length > copy.messages.length;
    for (const other of copy.messages) {
      const mine = this.byId.get(other.id);
      if (!mine) {
        this.insert({...other});  // what is shown here stays, unless this goes on at its end
        changed = true;
      } else if (progress(other) > progress(mine)) {
        const chosen = mine.chosen;
        Object.assign(mine, other, {chosen});
        if (other.state === undefined) delete mine.state;
        changed = true;
      } else if (progress(other) < progress(mine)) {
        ahead = true;
      }
    }
    if (copy.updated > this.updated) {
      if (this.title !== copy.title) [this.title, changed] = [copy.title, true];
      this.updated = copy.updated;
    }
    return {changed, ahead};
  }

  toJSON() {
    const {id, title, kind, created, updated, setup, chosen, messages} = this;
    return {version: kFormatVersion, id, title, kind, created, updated, setup, chosen, messages};
  }
}

export const isEmptyAnswer = message =>
  message.role === 'assistant' && !message.content && !message.calls?.length && message.state !== 'open';

// How far a message is: it grows while it is open, and may be continued afterwards.
const progress = message => (message.content.length + (message.reasoning?.length ?? 0)) * 2 + (message.state === 'open' ? 0 : 1);

function titleOf(message) {
  const line = message.content.trim().split('\n')[0] || message.files?.[0]?.name || 'Conversation';
  return line.length > 60 ? line.slice(0, 59).trimEnd() + '…' : line;
}

// A fence that the text does not contain.
function fenceFor(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(run => run.length));
  return '`'.repeat(longest + 1);
}

function withFiles(message) {
  if (!message.files?.length) return message.content;
  const parts = message.files.map(file => {
    const fence = fenceFor(file.text);
    return `File ${file.name}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...parts, message.content].filter(Boolean).join('\n\n');
}

// The messages of a path, as the API is sent them.
export function apiMessages(path, system) {
  const all = system?.trim() ? [{role: 'system', content: system.trim()}] : [];
  for (const message of path) {
    if (isEmptyAnswer(message)) continue;
    if (message.role === 'tool') {
      for (const result of message.results) all.push({role: 'tool', tool_call_id: result.id, content: result.content});
    } else if (message.role === 'assistant') {
      const calls = message.calls?.map(call =>
        ({id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments}}));
      all.push({role: 'assistant', content: message.content, ...(calls?.length ? {tool_calls: calls} : {})});
    } else {
      all.push({role: message.role, content: withFiles(message)});
    }
  }
  return all;
}

// A text of a model without a chat template: all of the path, in one.
export const textOf = path => path.map(message => message.content).join('');

// The path for people: a document.
export function asMarkdown(conversation) {
  const names = {user: 'You', assistant: 'Model', tool: 'Tool results', system: 'System'};
  const parts = [`# ${conversation.title}`];
  if (conversation.kind === 'text') return [...parts, textOf(conversation.path())].join('\n\n') + '\n';
  for (const message of conversation.path()) {
    parts.push(`## ${names[message.role]}`);
    if (message.content || message.files?.length) parts.push(withFiles(message));
    for (const call of message.calls ?? []) parts.push('Call of `' + call.name + '`:\n\n```json\n' + call.arguments + '\n```');
    for (const result of message.results ?? []) parts.push('Result of `' + result.name + '`:\n\n```\n' + result.content + '\n```');
  }
  return parts.join('\n\n') + '\n';
}
