// The shown messages. Only the last ones of a long conversation are in the document; a button brings earlier ones.
import {ask, goOn} from './answers.js';
import {callsView, resultsView} from './calls.js';
import {isEmptyAnswer} from './conversation.js';
import {button, byId, copyButton, element, sizeText} from './dom.js';
import {codeBlock, GrowingMarkdown} from './markdown.js';
import {figuresExplained, figuresText} from './reading.js';
import {emit, on, runningHere, save, state} from './state.js';

const kShown = 60;  // messages in the document at first
const kMore = 200;  // that a press of the button adds
const kNearEnd = 80;  // pixels from the end at which the view follows an answer
const kNames = {user: 'You', assistant: 'Model', tool: 'Tool results', system: 'System'};

const log = byId('log'), root = byId('turns'), earlier = byId('earlier');
let turns = new Map();  // of the current conversation, by message
let shown = kShown;

// One message in the document.
class Turn {
  constructor(message) {
    this.message = message;
    this.text = element('div', {class: 'text'});
    this.growing = new GrowingMarkdown(this.text);
    this.root = element('article', {class: `turn ${message.role}${state.current.kind === 'text' ? ' of-text' : ''}`}, this.text);
    this.drawWhole();
  }

  get conversation() { return state.current; }
  get plain() { return this.message.role !== 'assistant' || this.conversation.kind === 'text'; }
  get open() { return this.message.state === 'open' && runningHere()?.message === this.message; }

  // Redraws at most once per frame, however fast tokens come.
  grow() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const follow = nearEnd();
      if (this.open) this.drawGrowing();
      else this.drawWhole();
      if (follow) toEnd();
    });
  }

  drawGrowing() {
    const {message} = this;
    this.root.setAttribute('aria-busy', 'true');
    this.drawReasoning(false);
    if (this.plain || message.format) this.text.textContent = message.content;
    else this.growing.show(message.content);
    this.drawCalls();
    this.drawProgress();
  }

  // Everything, after something else than the text changed.
  drawWhole() {
    if (this.open) {
      this.root.querySelector('.foot')?.remove();
      this.root.querySelector('.error')?.remove();
      this.drawGrowing();
      return;
    }
    const {message} = this;
    this.root.removeAttribute('aria-busy');
    this.root.setAttribute('aria-label', this.conversation.kind === 'text' ? 'Text' : kNames[message.role]);
    this.root.classList.toggle('failed', message.state === 'failed');
    for (const node of this.root.querySelectorAll(':scope > :not(.text, .reasoning, .calls)')) node.remove();
    this.drawReasoning(true);
    this.drawText();
    this.drawCalls();
    if (message.files?.length) this.root.prepend(filesView(message.files));
    if (message.results) this.root.append(resultsView(message.results));
    if (message.error) this.root.append(element('p', {class: 'error', role: 'alert'}, message.error));
    this.root.append(this.foot());
  }

  drawText() {
    const {message} = this;
    this.text.hidden = !message.content && message.role !== 'user';
    if (this.plain) this.text.textContent = message.content;
    else if (message.format === 'json') this.text.replaceChildren(codeBlock(indented(message.content), 'json'));
    else this.growing.finish(message.content);
  }

  drawReasoning(whole) {
    const {reasoning, content} = this.message;
    if (!reasoning) return;
    if (!this.thoughts) {
      this.thoughts = {label: element('summary'), text: element('div', {class: 'text'})};
      this.thoughts.growing = new GrowingMarkdown(this.thoughts.text);
      this.root.prepend(element('details', {class: 'reasoning'}, this.thoughts.label, this.thoughts.text));
    }
    const words = reasoning.split(/\s+/).filter(Boolean).length;
    this.thoughts.label.textContent = whole || content ? `Reasoning, ${words} words` : `Reasoning … ${words} words`;
    if (whole) this.thoughts.growing.finish(reasoning);
    else this.thoughts.growing.show(reasoning);
  }

  drawCalls() {
    const {message} = this;
    if (!message.calls?.length) return;
    const answered = this.conversation.children(message).some(child => child.role === 'tool');
    const view = callsView(message.calls, this.open || answered ? null : results => {
      const tool = this.conversation.add(message, {role: 'tool', results});
      ask(this.conversation, tool);
    });
    const old = this.root.querySelector(':scope > .calls');
    if (old) old.replaceWith(view);
    else this.text.after(view);
  }

  // A line while the answer comes; before its first token it says for how long one has waited.
  drawProgress() {
    this.progress ??= element('p', {class: 'progress muted', 'aria-hidden': 'true'});
    if (this.progress.parentNode !== this.root) this.root.append(this.progress);
    const {reading} = runningHere();
    const seconds = Math.floor(reading.seconds);
    this.progress.textContent = reading.first !== null ? '' : seconds < 1 ? '…' : `waiting for the first token, ${seconds} s`;
  }

  foot() {
    const {message, conversation} = this;
    const foot = element('div', {class: 'foot'}, ...this.alternatives());
    if (message.content) foot.append(copyButton(() => message.content));
    if (message.role === 'user') foot.append(button('Edit', () => this.edit(), {class: 'small'}));
    if (message.role === 'assistant') this.footOfAnswer(foot);
    else if (conversation.shownChild(message) === null) {
      foot.append(button('Answer', () => ask(conversation, message), {class: 'small'}));
    }
    const note = {stopped: 'stopped', cut: 'cut at the limit', open: 'not finished: the page was closed, or another tab reads it'}[message.state];
    const figures = [figuresText(message.figures), note].filter(Boolean).join(' · ');
    if (figures) foot.append(element('span', {class: 'figures', title: message.figures ? figuresExplained(message.figures) : null}, figures));
    if (message.model && state.models.length > 1) foot.append(element('span', {class: 'model'}, message.model));
    return foot;
  }

  footOfAnswer(foot) {
    const {message, conversation} = this;
    const last = conversation.shownChild(message) === null;
    foot.append(button('Retry', () => ask(conversation, conversation.parentOf(message)),
      {class: 'small', title: 'Ask once more; this answer stays beside the new one'}));
    if (conversation.kind === 'text' ? last : last && message.content && !message.calls?.length && message.state) {
      foot.append(button('Continue', () => goOn(conversation, message), {class: 'small', title: 'Let the model go on from here'}));
    }
    if (message.content && !message.calls?.length) foot.append(button('Edit', () => this.edit(), {class: 'small'}));
  }

  // The way to other children of the same message.
  alternatives() {
    const {message, conversation} = this;
    const all = conversation.children(conversation.parentOf(message));
    if (all.length < 2) return [];
    const at = all.indexOf(message);
    const arrow = (sign, name, to) => button(sign, () => {
      conversation.choose(all[to]);
      save(conversation);
      emit('path');
      turns.get(all[to])?.root.querySelector('.alternatives button:enabled')?.focus();
    }, {class: 'small', 'aria-label': name, title: name, disabled: to < 0 || to >= all.length || Boolean(runningHere())});
    return [element('span', {class: 'alternatives', role: 'group', 'aria-label': `Alternative ${at + 1} of ${all.length}`},
      arrow('‹', 'Previous alternative', at - 1), `${at + 1}/${all.length}`, arrow('›', 'Next alternative', at + 1))];
  }

  // A field in place of the text. What it says becomes an alternative of the message.
  edit() {
    if (this.root.querySelector('.edit')) return;
    const {message, conversation} = this;
    const field = element('textarea', {'aria-label': 'The message', rows: '1'});
    field.value = message.content;
    const close = () => {
      form.remove();
      this.text.hidden = false;
      this.root.querySelector('.foot button')?.focus();
    };
    const form = element('form', {class: 'edit', submit: event => {
      event.preventDefault();
      close();
      this.replace(field.value);
    }}, field, element('div', {class: 'row'},
      element('button', {class: 'primary', type: 'submit'}, message.role === 'user' ? 'Send' : 'Save'), button('Cancel', close)));
    form.addEventListener('keydown', event => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && message.role === 'user') {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.text.hidden = true;
    this.text.after(form);
    field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
    field.focus();
  }

  replace(content) {
    const {message, conversation} = this;
    if (runningHere() || (content === message.content && message.role === 'assistant')) return;
    if (!content.trim() && !message.files?.length) return;
    const fields = {role: message.role, content, ...(message.files ? {files: message.files} : {})};
    const edited = conversation.add(conversation.parentOf(message), fields);
    save(conversation);
    if (message.role === 'user') {
      if (!ask(conversation, edited)) emit('path');
    } else {
      emit('path');
    }
  }
}

function indented(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function filesView(files) {
  return element('div', {class: 'files'}, ...files.map(file => element('details', {},
    element('summary', {}, `${file.name}, ${sizeText(file.text.length)}`), element('pre', {tabindex: '0'}, file.text))));
}

const nearEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < kNearEnd;
export const toEnd = () => { log.scrollTop = log.scrollHeight; };

// Puts the turns of the path into the document; those that are there already stay as they are.
function drawPath() {
  const path = state.current.path().filter(message => !isEmptyAnswer(message) || message.state || message.error);
  byId('hello').hidden = path.length > 0;
  const hidden = Math.max(0, path.length - shown);
  earlier.hidden = hidden === 0;
  earlier.textContent = `Show ${Math.min(hidden, kMore)} of ${hidden} earlier messages`;
  const before = turns;
  turns = new Map(path.slice(hidden).map(message => [message, before.get(message) ?? new Turn(message)]));
  const nodes = [...turns.values()].map(turn => turn.root);
  let same = 0;
  while (same < nodes.length && root.children[same] === nodes[same]) same++;
  while (root.children.length > same) root.lastChild.remove();
  root.append(...nodes.slice(same));
  // Buttons depend on neighbours: on children, alternatives, and whether an answer is coming.
  for (const [message, turn] of turns) if (before.has(message) && !turn.root.querySelector('.edit')) turn.drawWhole();
}

export function editLast() {
  const last = [...turns.values()].reverse().find(turn => turn.message.role === 'user');
  last?.edit();
}

earlier.addEventListener('click', () => {
  const fromEnd = log.scrollHeight - log.scrollTop;
  shown += kMore;
  drawPath();
  log.scrollTop = log.scrollHeight - fromEnd;
});

on('current', () => {
  turns = new Map();
  shown = kShown;
  byId('chat').dataset.kind = state.current.kind;
  root.replaceChildren();
  drawPath();
  toEnd();
});
on('path', () => {
  const follow = nearEnd();
  drawPath();
  if (follow || runningHere()) toEnd();
});
on('message', message => turns.get(message)?.grow());
on('running models', () => {
  for (const turn of turns.values()) if (!turn.root.querySelector('.edit')) turn.grow();
});
on('ended', message => {
  if (!turns.has(message)) return;
  const text = message.error ?? (message.content || 'The model calls a tool.');
  byId('announcer').textContent = message.state === 'stopped' ? 'Stopped.' : text.slice(0, 500);
});
setInterval(() => { if (runningHere()) turns.get(runningHere().message)?.drawProgress(); }, 1000);
